"""A module that travels with a job of features/code-folder.yaml: `import greeting`."""

TEXT = "hello"
