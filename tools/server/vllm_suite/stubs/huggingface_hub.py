"""Downloads nothing: an adapter's name stands for the model here."""


def snapshot_download(*_, **__):
    return "none"
