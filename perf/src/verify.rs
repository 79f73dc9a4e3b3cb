//! What is asked and what the answer has to be: requests and expectations, laid out before the run starts.

use berth_wire::rpc::{HeaderForm, PtpEncoding, RequestHeader, ResponseHeader};

use crate::shots::Shots;

/// What requests and answers look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// RPC: a header before the payload, which numbers the request.
    Rpc {
        /// The header form of the peer's port.
        header: HeaderForm,
        /// How the send time is written into the header; `None` writes 0.
        ptp: Option<PtpEncoding>,
        /// The peer sends requests back unchanged.
        echo: bool,
    },
    /// Two-sided messages: a payload is a whole request, an answer is a status byte and the data. Nothing numbers
    /// them, so answers are taken in the order of the requests, and a lost one makes the next ones wrong.
    TwoSided,
}

impl Protocol {
    /// Bytes of a request before its payload.
    pub fn request_head(&self) -> usize {
        match self {
            Self::Rpc { header, .. } => header.len(),
            Self::TwoSided => 0,
        }
    }

    /// Bytes of an answer before its results.
    pub fn answer_head(&self) -> usize {
        match self {
            Self::Rpc { header, .. } => header.len(),
            Self::TwoSided => 1,
        }
    }
}

/// One request of a mix: a function with the payloads it is asked and the answers they must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The function's name.
    pub name: &'static str,
    /// Its id on the wire, where it has one.
    pub function_id: u32,
    /// Payloads of equal length, one after the other.
    pub payloads: Table,
    /// What their answers have to be.
    pub expect: Expect,
}

impl Step {
    /// The bytes of the longest frame that is sent or expected.
    pub fn longest_frame(&self, protocol: &Protocol) -> usize {
        (protocol.request_head() + self.payloads.width()).max(protocol.answer_head() + self.expect.width())
    }
}

/// Byte strings of one length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    bytes: Vec<u8>,
    len: usize,
    rows: usize,
}

/// What the answers of a step have to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// These bytes, row by row.
    Bytes(Table),
    /// A decoder's prediction, compared with the reference decoder's and with the truth; only its size is checked.
    Prediction {
        /// How many observables; unused bits of the answer must be zero.
        observables: usize,
        /// The reference decoder's predictions, where there are any.
        reference: Option<Table>,
        /// The true observable flips.
        truth: Table,
    },
}

impl Table {
    /// Splits `bytes` into `rows` rows of `len` bytes; panics unless that is all of them. Empty rows have `len` 0.
    pub fn new(bytes: Vec<u8>, len: usize, rows: usize) -> Self {
        assert_eq!(bytes.len(), len * rows, "rows of equal length");
        Self { bytes, len, rows }
    }

    /// Rows of `len` bytes made by `fill`, which is told the row's number; it is not called for empty rows.
    pub fn build(len: usize, rows: usize, mut fill: impl FnMut(usize, &mut [u8])) -> Self {
        let mut bytes = vec![0; len * rows];
        if len > 0 {
            for (row, bytes) in bytes.chunks_exact_mut(len).enumerate() {
                fill(row, bytes);
            }
        }
        Self { bytes, len, rows }
    }

    /// Row `row`, counted from 0.
    #[inline]
    pub fn row(&self, row: usize) -> &[u8] {
        &self.bytes[row * self.len..][..self.len]
    }

    /// Bytes per row.
    pub fn width(&self) -> usize {
        self.len
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

impl Expect {
    /// The decoder's answers to `shots`.
    pub fn prediction(shots: &Shots) -> Self {
        let width = shots.observables.div_ceil(8);
        Self::Prediction {
            observables: shots.observables,
            reference: shots.reference.clone().map(|bytes| Table::new(bytes, width, shots.len())),
            truth: Table::new(shots.truth.clone(), width, shots.len()),
        }
    }

    /// Bytes of a right answer.
    pub fn width(&self) -> usize {
        match self {
            Self::Bytes(table) | Self::Prediction { truth: table, .. } => table.width(),
        }
    }
}

/// What an answer turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verified {
    /// The right bytes.
    Exact,
    /// A prediction of the right size.
    Prediction {
        /// It equals the truth.
        right: bool,
        /// The reference decoder's, where there is one.
        reference: Option<Reference>,
    },
    /// A status other than 0.
    Refused(i32),
    /// Not what it had to be.
    Wrong(Mistake),
}

/// What the reference decoder predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// The same as the answer.
    pub agrees: bool,
    /// The truth.
    pub right: bool,
}

/// What is wrong with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Mistake {
    /// The frame is not as long as its header says, zeros behind the result aside, or was truncated.
    #[error("the frame is not as long as its header says")]
    FrameLength,
    /// The result does not have the size of the function's result.
    #[error("the result has another length than the function's")]
    ResultLength,
    /// The PTP time is not the request's.
    #[error("the PTP time is not the request's")]
    PtpEcho,
    /// The function id is not the request's (echo).
    #[error("the function id is not the request's")]
    FunctionEcho,
    /// The result has other bytes than it must.
    #[error("the result has other bytes than it must")]
    Bytes,
    /// Not a frame of the protocol.
    #[error("no header, or a wrong magic")]
    Header,
    /// A request number that was never used.
    #[error("a request number that was never sent")]
    UnknownRequest,
}

/// The part of an answer that says what it answers.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// The request's number.
    pub request_id: u32,
    ptp_timestamp: u64,
    body: Body,
}

#[derive(Debug, Clone, Copy)]
enum Body {
    Response {
        status: i32,
        result_len: u32,
    },
    Echo {
        function_id: u32,
        arg_len: u32,
    },
    /// A status byte, and all that follows.
    Bare {
        status: u8,
    },
}

/// Reads the head of an answer; one that does not say what it answers is to `next`.
#[inline]
pub fn identify(protocol: &Protocol, next: u32, frame: &[u8]) -> Option<Identity> {
    let Protocol::Rpc { header: form, echo, .. } = *protocol else {
        let body = Body::Bare { status: *frame.first()? };
        return Some(Identity { request_id: next, ptp_timestamp: 0, body });
    };
    if echo {
        let header = RequestHeader::parse(form, frame).ok()?;
        let body = Body::Echo { function_id: header.function_id, arg_len: header.arg_len };
        return Some(Identity { request_id: header.request_id, ptp_timestamp: header.ptp_timestamp, body });
    }
    let header = ResponseHeader::parse(form, frame).ok()?;
    let body = Body::Response { status: header.status, result_len: header.result_len };
    Some(Identity { request_id: header.request_id, ptp_timestamp: header.ptp_timestamp, body })
}

/// Compares an answer with what row `row` of `step`, sent with `ptp_timestamp`, must be answered.
#[inline]
pub fn verify(protocol: &Protocol, identity: &Identity, frame: &[u8], step: &Step, row: usize, ptp: u64) -> Verified {
    let mut payload = &frame[protocol.answer_head()..];
    let len = match identity.body {
        Body::Response { result_len: len, .. } | Body::Echo { arg_len: len, .. } => len as usize,
        Body::Bare { status: 0 } => payload.len(),
        Body::Bare { .. } => 0,
    };
    // A server of slots may send the whole one, which is as good if nothing is in the rest.
    if let (Body::Response { .. }, Some((results, padding))) = (identity.body, payload.split_at_checked(len))
        && padding.iter().all(|byte| *byte == 0)
    {
        payload = results;
    }
    if payload.len() != len {
        return Verified::Wrong(Mistake::FrameLength);
    }
    if identity.ptp_timestamp != ptp {
        return Verified::Wrong(Mistake::PtpEcho);
    }
    match identity.body {
        Body::Echo { function_id, .. } => {
            if function_id != step.function_id {
                return Verified::Wrong(Mistake::FunctionEcho);
            }
            same(payload, step.payloads.row(row))
        }
        Body::Response { status: 0, .. } | Body::Bare { status: 0 } => match &step.expect {
            Expect::Bytes(table) => same(payload, table.row(row)),
            Expect::Prediction { observables, reference, truth } => {
                if payload.len() != truth.width() {
                    return Verified::Wrong(Mistake::ResultLength);
                }
                if observables % 8 != 0 && payload.last().is_some_and(|last| last >> (observables % 8) != 0) {
                    return Verified::Wrong(Mistake::Bytes);
                }
                let truth = truth.row(row);
                let reference = reference.as_ref().map(|table| {
                    let predicted = table.row(row);
                    Reference { agrees: payload == predicted, right: predicted == truth }
                });
                Verified::Prediction { right: payload == truth, reference }
            }
        },
        Body::Response { status, .. } => Verified::Refused(status),
        Body::Bare { status } => Verified::Refused(status.into()),
    }
}

#[inline]
fn same(payload: &[u8], expected: &[u8]) -> Verified {
    if payload == expected {
        Verified::Exact
    } else if payload.len() == expected.len() {
        Verified::Wrong(Mistake::Bytes)
    } else {
        Verified::Wrong(Mistake::ResultLength)
    }
}
