"""Errors that are the user's to fix: shown as one message, without a traceback."""

USAGE_EXIT_CODE = 2


class UserError(Exception):
    """Something the command line, a file or the machine must change. `fix` says what."""

    def __init__(self, cause: str, fix: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.cause}\n  fix: {self.fix}" if self.fix else self.cause


def report(error: UserError) -> str:
    return f"torchtitan-npu: error: {error}"
