"""Every error that Hone raises on purpose, in one tree, each with its HTTP status.

    HoneError                    500
    ├── BadRequest               400  the request cannot be understood or honoured
    ├── Unauthorized             401  no key, or one that is not valid
    ├── Forbidden                403  the key is valid and may not do this
    ├── NotFound                 404  no such thing in this tenant
    ├── Conflict                 409  it contradicts what is already there
    ├── Gone                     410  it has ended
    ├── TooLarge                 413  over a size limit
    ├── Unprocessable            422  well formed, but no value we can store
    ├── TooManyRequests          429  wait, then again (`retry_after_s`)
    ├── BudgetExceeded           429  a key's tokens are used up; trying again soon does not help
    ├── UpstreamFailed           502  the engine failed (or the status it gave)
    ├── Unavailable              503  a store cannot be reached (`retry_after_s`)
    ├── SettingsError            -    refused at start: it could not work
    ├── LeaseLost                -    another trainer holds the policy's fence
    ├── RankLost                 -    a process of a trainer with several is gone
    └── CorruptRecord            -    stored bytes do not decode, or break their digest

A message says what to write instead. What is raised outside this tree is a bug: it becomes a 500, is logged with its
trace, and the next request works.
"""


class HoneError(Exception):
    """Base of the tree. `param` names the offending field, `code` is for programs, `kind` is OpenAI's `type`."""

    status = 500
    kind = "server_error"
    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class BadRequest(HoneError):
    """The request cannot be understood or honoured as it is."""

    status = 400
    kind = "invalid_request_error"
    code = "invalid_request"


class Unauthorized(HoneError):
    """No key was given, or the key given is not valid."""

    status = 401
    kind = "authentication_error"
    code = "invalid_api_key"


class Forbidden(HoneError):
    """The key is valid and its scopes do not reach this."""

    status = 403
    kind = "permission_error"
    code = "insufficient_scope"


class NotFound(HoneError):
    """No such thing in this tenant. A foreign id reads the same as an unknown one."""

    status = 404
    kind = "invalid_request_error"
    code = "not_found"


class Conflict(HoneError):
    """The request contradicts what is already stored."""

    status = 409
    kind = "invalid_request_error"
    code = "conflict"


class Gone(HoneError):
    """The episode has ended: no further call can join it."""

    status = 410
    kind = "invalid_request_error"
    code = "episode_ended"


class TooLarge(HoneError):
    """A body or header is over its limit."""

    status = 413
    kind = "invalid_request_error"
    code = "too_large"


class Unprocessable(HoneError):
    """Well formed, but no value that can be stored (a reward that is not finite)."""

    status = 422
    kind = "invalid_request_error"
    code = "unprocessable"


class TooManyRequests(HoneError):
    """A limit or the staleness bound is reached; the same request works later."""

    status = 429
    kind = "rate_limit_error"
    code = "rate_limited"

    def __init__(self, message: str, *, retry_after_s: int = 1, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class BudgetExceeded(HoneError):
    """A key has spent its tokens. `retry_after_s` is when it has some again, `None` where only a person can help."""

    status = 429
    kind = "insufficient_quota"
    code = "budget_exceeded"

    def __init__(self, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UpstreamFailed(HoneError):
    """The engine failed. `status` is the engine's own for 4xx and 503, else 502."""

    status = 502
    kind = "upstream_error"
    code = "upstream_failed"

    def __init__(self, message: str, *, status: int = 502, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.status = status


class Unavailable(HoneError):
    """A store cannot be reached, so the call could not be recorded: refused rather than served unseen."""

    status = 503
    kind = "server_error"
    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: int = 1, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class SettingsError(HoneError):
    """Refused at start, because it could not work. The message names the setting and a value that would."""

    code = "bad_settings"


class LeaseLost(HoneError):
    """Another trainer holds the policy's lease: nothing this one writes is accepted any more."""

    code = "lease_lost"


class RankLost(HoneError):
    """Another process of the same trainer is gone, and this one cannot go on without it."""

    code = "rank_lost"


class CorruptRecord(HoneError):
    """Stored bytes do not decode, or what they decode to breaks its digest."""

    code = "corrupt_record"


def words_of(error: BaseException) -> str:
    """What an error from elsewhere says; its kind where it says nothing, as timeouts do.

    >>> words_of(OSError("no route")), words_of(TimeoutError())
    ('no route', 'TimeoutError')
    """
    return str(error) or type(error).__name__
