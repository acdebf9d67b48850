"""Define the errors that callers of the gateway get."""

from typing import Any


class BadRequest(Exception):
    """Refuse a request with the error body of its API.

    Args:
        message: What was wrong, and what to do.
        status: HTTP status.
        param: Parameter of the request that was wrong.
        code: Code that clients may compare with, such as "context_length_exceeded".
    """

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return the body of an error, as OpenAI's APIs have it."""
    kinds = {401: "authentication_error", 403: "permission_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
