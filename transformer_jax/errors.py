"""The one exception a user can cause: shown as a single line, without a traceback."""


class UserError(ValueError):
    """A mistake in what the user gave: a path, a flag, a config value, a text file.

    The message is one line that says what was got, what was expected and what to do.
    The commands print it to standard error and exit with status 2; in a notebook it
    is an ordinary `ValueError`.
    """
