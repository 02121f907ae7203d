"""The embedded model, the script that trained it, and the loader that takes it, a folder or a hub name alike."""
