//! Checks that a message is a request that can be dispatched.

use berth_wire::rpc::{HeaderForm, RequestHeader, status};

use crate::{FunctionIndex, FunctionTable};

/// A request whose function exists and whose arguments match its schema.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) header: RequestHeader,
    pub(crate) function: FunctionIndex,
    /// Bytes of arguments that arrived.
    pub(crate) arg_len: usize,
}

impl Request {
    /// Whether the header claims more arguments than there are.
    #[inline]
    pub(crate) fn is_cut(&self) -> bool {
        self.header.arg_len as usize > self.arg_len
    }
}

/// Checks the request with this header in `data`, of which the sender sent `wire_len` bytes. A refusal is the status to
/// answer with. Bytes behind the arguments are padding.
#[inline]
pub(crate) fn check(
    table: &FunctionTable,
    form: HeaderForm,
    slot_size: usize,
    header: RequestHeader,
    data: &[u8],
    wire_len: usize,
) -> Result<Request, i32> {
    if wire_len > slot_size {
        return Err(status::BAD_LENGTH);
    }
    let index = table.find(header.function_id).ok_or(status::UNKNOWN_FUNCTION)?;
    let function = table.rule(index);
    let (claimed, there) = (header.arg_len as usize, data.len() - form.len());
    if claimed > there && !function.checks_length {
        return Err(status::BAD_LENGTH);
    }
    let arg_len = claimed.min(there);
    if !function.args.accept(arg_len) {
        return Err(status::SCHEMA_MISMATCH);
    }
    Ok(Request { header, function: index, arg_len })
}
