"""Kubernetes' own rules for names, labels and variables, as checks that say what would work.

Every check takes and returns the text, or raises ValueError. `k8s.jobfile.spec` puts them on its fields.
"""

import re

LONGEST = 63  # of a DNS label: names of hosts and Services, values of labels

_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_TOKEN = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# [registry[:port]/]path[:tag][@digest]
_IMAGE = re.compile(
    r"([A-Za-z0-9]([-.A-Za-z0-9]*[A-Za-z0-9])?(:[0-9]+)?/)?"
    r"[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*(/[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][-.A-Za-z0-9_]{0,127})?(@[a-z0-9]+:[0-9a-f]{32,})?"
)


def job_name(text: str) -> str:
    """Check a job's name: it becomes the name of a Service, so it starts with a letter.

    How long it may be is for the plan to say, which knows what is made of it.
    """
    if not _DNS_LABEL.fullmatch(text):
        hint = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-0123456789")
        raise ValueError(
            "must be lower-case letters, digits and '-', start with a letter and not end with '-'"
            + (f"; {hint} would do" if _DNS_LABEL.fullmatch(hint) else "")
        )
    return text


def dns_label(text: str) -> str:
    """Check the name of something within a pod, such as a volume."""
    if len(text) > LONGEST or not _NAMESPACE.fullmatch(text):
        raise ValueError(f"must be at most {LONGEST} lower-case letters, digits and '-'")
    return text


def data_key(text: str) -> str:
    """Check a key of a ConfigMap or Secret, which is a file's name too."""
    if len(text) > 253 or not re.fullmatch(r"(?!\.$|\.\.)[-._a-zA-Z0-9]+", text):
        raise ValueError(
            "must be at most 253 letters, digits, '-', '_' and '.', and not '.' or begin with '..'"
        )
    return text


def namespace(text: str) -> str:
    if len(text) > LONGEST or not _NAMESPACE.fullmatch(text):
        raise ValueError(f"must be at most {LONGEST} lower-case letters, digits and '-'")
    return text


def subdomain(text: str) -> str:
    """Check the name of an object that is no host, such as a volume claim."""
    if len(text) > 253 or not _SUBDOMAIN.fullmatch(text):
        raise ValueError("must be at most 253 lower-case letters, digits, '-' and '.'")
    return text


def variable(text: str) -> str:
    """Check an environment variable's name, as a shell can export it too."""
    if not _VARIABLE.fullmatch(text):
        raise ValueError("must be letters, digits and '_', and not start with a digit")
    return text


def image(text: str) -> str:
    if not _IMAGE.fullmatch(text):
        raise ValueError("not an image reference; e.g. ghcr.io/example/trainer:1.0")
    return text


def qualified(text: str) -> str:
    """Check the key of a label or annotation: [domain/]name."""
    prefix, slash, name = text.rpartition("/")
    if slash:
        subdomain(prefix)
    if len(name) > LONGEST or not _TOKEN.fullmatch(name):
        raise ValueError(
            f"must be [domain/]name, the name at most {LONGEST} letters, digits, '-', '_' and '.'"
        )
    return text


def label_value(text: str) -> str:
    if text and (len(text) > LONGEST or not _TOKEN.fullmatch(text)):
        raise ValueError(f"must be at most {LONGEST} letters, digits, '-', '_' and '.'")
    return text


def device_resource(text: str) -> str:
    """Check the name of an extended resource: it has a domain, and not Kubernetes' own."""
    domain, slash, _ = qualified(text).rpartition("/")
    if not slash or domain.endswith("kubernetes.io"):
        raise ValueError("must be the name of an extended resource, e.g. nvidia.com/gpu")
    return text


def absolute_path(text: str) -> str:
    """Check a folder on a machine, which has one spelling; a mount can hold neither ':' nor '..'."""
    if not text.startswith("/") or re.search(r":|//|/\.\.?(/|$)", text):
        raise ValueError(
            "must be an absolute path without ':', '//', '/.' and '/..', e.g. /mnt/data"
        )
    return text
