"""The views once more, for matplotlib: one module each, with

    height(engine)                            inches that it wants
    draw(axes, engine, data, here, longest)   `here`: the playhead's iteration; longest: iterations of the longest run
    legend(data)                              [(words, handle), ...] of what this data has
    TIMED                                     whether its x axis is the iterations
"""
