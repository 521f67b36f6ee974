"""Checks of Kubernetes' rules for names, labels and variables; their errors say what would work.

Every check takes and returns the text, or raises ValueError. `k8s.jobfile.spec` puts them on its fields.
"""

import re
from collections.abc import Callable

LONGEST = 63  # characters of a DNS label (names of hosts and Services) and of a label's value


def matching(form: str, message: str, *, longest: int | None = None) -> Callable[[str], str]:
    """Return a check that refuses, with `message`, a text that is too long or does not match `form`."""
    pattern = re.compile(form)

    def check(text: str) -> str:
        if not pattern.fullmatch(text) or (longest is not None and len(text) > longest):
            raise ValueError(message)
        return text

    return check


_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_WORD = r"[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?"
_PATH = r"[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*"

# The name of a namespace, or of something within a pod, such as a volume.
dns_label = matching(
    _LABEL, f"must be at most {LONGEST} lower-case letters, digits and '-'", longest=LONGEST
)


def _subdomain(longest: int) -> Callable[[str], str]:
    message = f"must be at most {longest} lower-case letters, digits, '-' and '.'"
    return matching(rf"{_LABEL}(\.{_LABEL})*", message, longest=longest)


# The name of an object that is not a host, such as a volume claim; and one that is also a label's value.
subdomain = _subdomain(253)
subdomain_in_label = _subdomain(LONGEST)
# A key of a ConfigMap or Secret, which is also the name of a file.
data_key = matching(
    r"(?!\.$|\.\.)[-._a-zA-Z0-9]+",
    "must be at most 253 letters, digits, '-', '_' and '.', and not be '.' or start with '..'",
    longest=253,
)
label_value = matching(
    f"({_WORD})?", f"must be at most {LONGEST} letters, digits, '-', '_' and '.'", longest=LONGEST
)
# An environment variable's name that a shell can also export. In a compose file it is a key of a
# mapping, for which YAML parsers allow at most 1,024 characters.
variable = matching(
    r"[A-Za-z_][A-Za-z0-9_]*",
    "must be at most 253 letters, digits and '_', and not start with a digit",
    longest=253,
)
# [registry[:port]/]path[:tag][@digest]
image = matching(
    rf"([A-Za-z0-9]([-.A-Za-z0-9]*[A-Za-z0-9])?(:[0-9]+)?/)?{_PATH}(/{_PATH})*"
    r"(:[A-Za-z0-9_][-.A-Za-z0-9_]{0,127})?(@[a-z0-9]+:[0-9a-f]{32,})?",
    "not an image reference; e.g. ghcr.io/example/trainer:1.0",
)
# A folder on a machine; a mount can hold neither ':' nor '..'.
absolute_path = matching(
    r"(?s)(?!.*(:|//|/\.\.?(/|$)))/.*",
    "must be an absolute path without ':', '//', '/.' and '/..', e.g. /mnt/data",
)


def job_name(text: str) -> str:
    """Check a job's name: it becomes the name of a Service, so it starts with a letter.

    The plan checks the length, because it knows which names are made from this one.
    """
    form = r"[a-z]([-a-z0-9]*[a-z0-9])?"
    if not re.fullmatch(form, text):
        hint = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-0123456789")
        raise ValueError(
            "must be lower-case letters, digits and '-', start with a letter and not end with '-'"
            + (f"; use {hint}" if re.fullmatch(form, hint) else "")
        )
    return text


def qualified(text: str) -> str:
    """Check the key of a label or annotation: [domain/]name."""
    prefix, slash, name = text.rpartition("/")
    if slash:
        subdomain(prefix)
    if len(name) > LONGEST or not re.fullmatch(_WORD, name):
        raise ValueError(
            f"must be [domain/]name, the name at most {LONGEST} letters, digits, '-', '_' and '.'"
        )
    return text


def device_resource(text: str) -> str:
    """Check the name of an extended resource: it has a domain, which is not Kubernetes' own."""
    domain, slash, _ = qualified(text).rpartition("/")
    if not slash or domain.endswith("kubernetes.io"):
        raise ValueError("must be the name of an extended resource, e.g. nvidia.com/gpu")
    return text
