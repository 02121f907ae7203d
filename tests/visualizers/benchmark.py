"""How fast the player is in a real browser: python tests/visualizers/benchmark.py

64 batch slots x about 2,000 iterations, 1,000 requests. First paint: from the moment the page's data is there (as text)
to the first picture on the screen. Frames: drawn while it plays, at its fastest speed.
"""

import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # helpers
sys.path.insert(0, str(Path(__file__).parents[2]))  # visualizers: the package, not this folder

from helpers.browser import chromium
from helpers.traces import requests, run

from tinyengine.memory import Blocks
from tinyengine.scheduler import Orca, Paged
from visualizers import show
from visualizers.player import VIEWS

FIRST_PAINT = """async () => {
    const text = await unpacked(document.getElementById("data").textContent);
    const host = document.body.appendChild(document.createElement("div"));
    const before = performance.now();
    mount(host, text);
    await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
    const after = performance.now();
    host.firstChild.player.destroy();
    return after - before;
}"""
FRAMES = """async () => {
    const player = document.querySelector(".te-player").player, times = [];
    player.move(player.longest * 0.2);
    player.speed = 200;
    player.play();
    await new Promise(done => {
        const tick = now => (times.push(now), times.length < 150 ? requestAnimationFrame(tick) : done());
        requestAnimationFrame(tick);
    });
    player.pause();
    return (times.length - 1) / (times.at(-1) - times[0]) * 1000;
}"""
DRAW = """() => {
    const player = document.querySelector(".te-player").player, times = [];
    for (let i = 0; i < 200; i++) {
        player.position = 800 + i;
        const before = performance.now();
        player.draw();
        for (const {canvas} of player.drawables) canvas?.getContext("2d").getImageData(0, 0, 1, 1); // until it is drawn
        times.push(performance.now() - before);
    }
    return times.sort((a, b) => a - b)[100];
}"""


def main():
    slots = run(Orca, requests(1000, 250, 40), 64)
    blocks = run(Paged, requests(1000, 250, 40), 64, Blocks(900, 16))
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        print(f"{'':34}{'page':>9}{'first paint':>14}{'a frame':>10}{'playing':>16}")
        for name, trace in (("64 slots", slots), ("900 blocks", blocks)):
            for views in (["slots"], ["slots", "batch"], ["memory"], list(VIEWS)):
                player = show(trace, views=views)
                path = player.to_html(Path(folder) / "page.html")
                page = browser.new_page(viewport={"width": 1400, "height": 900})
                source = path.read_text().replace(
                    "mount(document", "Object.assign(window, { mount, unpacked });\nmount(document"
                )
                path.write_text(source)
                page.goto(path.as_uri())
                page.locator(".te-player").wait_for()
                paint = statistics.median(page.evaluate(FIRST_PAINT) for _ in range(5))
                frame, rate = page.evaluate(DRAW), page.evaluate(FRAMES)
                what = f"{name} x {len(trace.iterations)}, {'all views' if len(views) > 2 else ' + '.join(views)}"
                size = len(source.encode()) / 1e6
                print(f"{what:34}{size:6.2f} MB{paint:11.0f} ms{frame:7.1f} ms{rate:9.0f} frames/s")
                page.close()


if __name__ == "__main__":
    main()
