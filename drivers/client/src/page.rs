//! Page operations, with typed arguments and results.

use berth_wire::fabric::{
    FabricError,
    data::page::{PageRef, Request, Response, State, Status},
};

use crate::{Client, Error};

/// Body of a successful answer.
enum Answer {
    Done,
    Data(Vec<u8>),
    State(State),
}

impl Client {
    /// Reads `length` bytes from `offset` within a page.
    pub async fn page_read(&self, page: PageRef, offset: u32, length: u32) -> Result<Vec<u8>, Error> {
        match self.page(&Request::Read { page, offset, length }).await? {
            Answer::Data(data) if data.len() == length as usize => Ok(data),
            _ => Err(Error::Mismatch),
        }
    }

    /// Writes bytes from `offset` within a page on.
    pub async fn page_write(&self, page: PageRef, offset: u32, data: &[u8]) -> Result<(), Error> {
        self.page(&Request::Write { page, offset, data }).await.map(drop)
    }

    /// Copies a page over another one; both leases must be this client's.
    pub async fn page_copy(&self, src: PageRef, dst: PageRef) -> Result<(), Error> {
        self.page(&Request::Copy { src, dst }).await.map(drop)
    }

    /// Fills a page with zeros.
    pub async fn page_zero(&self, page: PageRef) -> Result<(), Error> {
        self.page(&Request::Zero(page)).await.map(drop)
    }

    /// Replaces a page's advice flags.
    pub async fn page_advise(&self, page: PageRef, flags: u32) -> Result<(), Error> {
        self.page(&Request::Advise { page, flags }).await.map(drop)
    }

    /// Tracked state of a page.
    pub async fn page_query(&self, page: PageRef) -> Result<State, Error> {
        match self.page(&Request::Query(page)).await? {
            Answer::State(state) => Ok(state),
            _ => Err(Error::Mismatch),
        }
    }

    async fn page(&self, request: &Request<'_>) -> Result<Answer, Error> {
        let mut payload = Vec::new();
        request.write(&mut payload);
        let answer = self.exchange_page(payload).await?;
        match Response::parse(&answer).ok_or(FabricError::Value("a PAGE_RESPONSE"))? {
            Response::Status(op, Status::Ok) if op == request.op() => Ok(Answer::Done),
            Response::Status(op, status) if op == request.op() => Err(Error::Page { op, status }),
            Response::Status(..) => Err(Error::Mismatch),
            Response::Data(data) => Ok(Answer::Data(data.to_vec())),
            Response::State(state) => Ok(Answer::State(state)),
        }
    }
}
