//! What makes a message a request that can be dispatched.

use berth_wire::rpc::{HeaderError, HeaderForm, RequestHeader, status};

use crate::{FunctionIndex, FunctionTable};

/// A request whose function exists and whose arguments are of its schema.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) header: RequestHeader,
    pub(crate) function: FunctionIndex,
    /// Bytes of arguments that are there.
    pub(crate) arg_len: usize,
}

/// Why a message cannot be dispatched.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Refused {
    /// Not a request of this protocol: there is nobody to answer.
    Header(HeaderError),
    /// Answered with this status.
    Status(RequestHeader, i32),
}

/// Checks `data`, of which the sender sent `wire_len` bytes. Bytes behind the arguments are padding.
#[inline]
pub(crate) fn check(
    table: &FunctionTable,
    form: HeaderForm,
    slot_size: usize,
    data: &[u8],
    wire_len: usize,
) -> Result<Request, Refused> {
    let header = RequestHeader::parse(form, data).map_err(Refused::Header)?;
    let refuse = |status| Err(Refused::Status(header, status));
    if wire_len > slot_size {
        return refuse(status::BAD_LENGTH);
    }
    let Some(index) = table.find(header.function_id) else {
        return refuse(status::UNKNOWN_FUNCTION);
    };
    let function = table.get(index);
    let (claimed, there) = (header.arg_len as usize, data.len() - form.len());
    if claimed > there && !function.checks_length {
        return refuse(status::BAD_LENGTH);
    }
    let arg_len = claimed.min(there);
    if !function.schema.accepts_args(arg_len) {
        return refuse(status::SCHEMA_MISMATCH);
    }
    Ok(Request { header, function: index, arg_len })
}
