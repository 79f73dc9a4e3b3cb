//! The protocol statuses: every negative status Berth answers (section "Status Codes"; the list itself is ours).

/// The handler did its work.
pub const OK: i32 = 0;
/// No function of the table has the request's `function_id`.
pub const UNKNOWN_FUNCTION: i32 = -1;
/// `arg_len` reaches beyond the frame, or the frame is longer than a slot.
pub const BAD_LENGTH: i32 = -2;
/// The arguments do not have the sizes of the function's schema.
pub const SCHEMA_MISMATCH: i32 = -3;
/// The results do not fit into the answer's slot.
pub const RESULT_TOO_LARGE: i32 = -4;
/// Over a limit of the port, no free slot towards the workers, or the function rests after too many overruns or panics; the request was not run.
pub const OVERLOADED: i32 = -5;
/// The handler panicked, wrote an answer that is none, or did not answer in time.
pub const HANDLER_FAILED: i32 = -6;

/// Every protocol status with its name.
pub const NAMES: [(i32, &str); 6] = [
    (UNKNOWN_FUNCTION, "unknown_function"),
    (BAD_LENGTH, "bad_length"),
    (SCHEMA_MISMATCH, "schema_mismatch"),
    (RESULT_TOO_LARGE, "result_too_large"),
    (OVERLOADED, "overloaded"),
    (HANDLER_FAILED, "handler_failed"),
];

/// The name of a protocol status; `None` for success, handler errors and negative values nobody defined.
pub fn name(status: i32) -> Option<&'static str> {
    NAMES.iter().find(|(code, _)| *code == status).map(|(_, name)| *name)
}
