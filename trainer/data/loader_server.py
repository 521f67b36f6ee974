"""The first import of the process that forks the loader's workers; `trainer/data/loader.py` starts it.

import trainer.data.loader_server
"""

from trainer.imports import without_collection

with without_collection():
    import trainer.data.loader  # noqa: F401
