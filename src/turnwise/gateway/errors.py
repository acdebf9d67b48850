"""Define the errors that callers of the gateway get."""

from typing import Any


class BadRequest(Exception):
    """Refuse a request with the error body of OpenAI's API.

    Args:
        message: What was wrong, and what to do.
        status: HTTP status.
        param: Parameter of the request that was wrong.
        code: Code that clients may compare with, such as "context_length_exceeded".
    """

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The error body."""
        return error_body(self.status, self.message, self.param, self.code)


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return the body of an error, as OpenAI's API has it."""
    kinds = {401: "authentication_error", 403: "permission_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
