"""What a request brings along, read as an API server reads it.

body = read(handler.headers, handler.rfile)
"""

import json
from email.message import Message
from io import BufferedIOBase
from typing import Any

import yaml


def read(headers: Message, file: BufferedIOBase) -> Any:
    """Return the body, or None. An apply's is YAML, of which not all JSON is a part: surrogate pairs.

    Raises YAMLError.
    """
    length = int(headers.get("Content-Length") or 0)
    if not length:
        return None
    text = file.read(length)
    if headers.get_content_type() == "application/apply-patch+yaml":
        return yaml.load(text, yaml.CSafeLoader)
    return json.loads(text)
