//! The protocol statuses: every negative status that Berth sends (section "Status Codes"; the list itself is ours).

/// The handler succeeded.
pub const OK: i32 = 0;
/// The port's table has no function with the request's `function_id`.
pub const UNKNOWN_FUNCTION: i32 = -1;
/// `arg_len` reaches beyond the frame, or the frame is longer than a slot.
pub const BAD_LENGTH: i32 = -2;
/// The arguments do not have the sizes of the function's schema.
pub const SCHEMA_MISMATCH: i32 = -3;
/// The results do not fit into the slot of the answer.
pub const RESULT_TOO_LARGE: i32 = -4;
/// The request was not run: over a limit of the port, no free slot towards the workers, or a function suspended after
/// too many overruns or panics.
pub const OVERLOADED: i32 = -5;
/// The handler panicked, wrote an invalid answer, or did not answer in time.
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

/// The name of a protocol status; `None` for success, handler errors and undefined negative values.
pub fn name(status: i32) -> Option<&'static str> {
    NAMES.iter().find(|(code, _)| *code == status).map(|(_, name)| *name)
}
