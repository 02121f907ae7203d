"""Put a result into the output of the running cell, or on the terminal when there is no notebook."""

import sys

WIDGET = "application/vnd.jupyter.widget-view+json"


def in_notebook() -> bool:
    """True inside a Jupyter kernel; false in a plain Python process and in the unit tests."""
    ipython = sys.modules.get("IPython")  # never imported here: a process without it is no notebook
    return bool(ipython and ipython.get_ipython() is not None)


def publish(plain: str, **rich) -> None:
    """Show `plain`, and beside it the richer forms given by MIME type (`**{"text/markdown": ...}`)."""
    if in_notebook():
        from IPython.display import publish_display_data

        publish_display_data({"text/plain": plain, **rich})
    else:
        print(plain)


def view(widget) -> dict:
    """The form of an output that shows a widget: a front end takes it before the text that stands beside it."""
    return {WIDGET: {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}}
