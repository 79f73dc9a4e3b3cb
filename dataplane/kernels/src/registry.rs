//! The messages that there are, by name.

use std::sync::Arc;

use berth_wire::memory_pack::{Guid, MemoryPack};

use crate::{Member, Schema, SchemaError};

/// What `builtin:vector_add` takes: 42 bytes raw, 43 in dotcompute, 46 in memorypack (K2).
#[derive(Debug, Clone, Copy, PartialEq, MemoryPack)]
#[memory_pack(message)]
pub struct VectorAddRequest {
    /// Different for each request: repeated ones are found by it. Zero is never remembered.
    pub message_id: Guid,
    /// Higher ones go first where the kernel's queue has `priority`.
    pub priority: u8,
    /// Copied to the response unless it is absent or zero.
    pub correlation_id: Option<Guid>,
    /// First summand.
    pub a: f32,
    /// Second summand.
    pub b: f32,
}

/// What it answers: 38 bytes raw, 39 in dotcompute, 42 in memorypack (K2).
#[derive(Debug, Clone, Copy, PartialEq, MemoryPack)]
#[memory_pack(message)]
pub struct VectorAddResponse {
    /// That of the request.
    pub message_id: Guid,
    /// That of the request.
    pub priority: u8,
    /// That of the request, or its `message_id`; absent where both are zero.
    pub correlation_id: Option<Guid>,
    /// `a` + `b` in IEEE single precision; every NaN is 0x7FC00000.
    pub result: f32,
}

/// A message type, and the one that answers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its name, members and layout.
    pub schema: Arc<Schema>,
    /// The name of its response; `None` if it is no request.
    pub response: Option<String>,
}

/// Why a message was not added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Its members make no message.
    #[error("{0}")]
    Schema(#[from] SchemaError),
    /// A built-in message has the name. Its layout never changes.
    #[error("{0:?} is built in; a new version has a name of its own, such as \"{0}V2\"")]
    BuiltIn(String),
    /// Another message has the name.
    #[error("{0:?} is taken; a new version has a name of its own, such as \"{0}V2\"")]
    Twice(String),
}

/// Message types by name. A name stands for one layout for good; a new version is a new name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registry {
    messages: Vec<Message>,
    /// How many of them, from the first, are built in.
    built_in: usize,
}

impl Default for Registry {
    /// The built-in messages, `VectorAddRequest` and `VectorAddResponse`.
    fn default() -> Self {
        let mut registry = Self { messages: Vec::new(), built_in: 0 };
        let mut built_in = |schema: Result<_, _>, response: Option<&str>| {
            let schema = schema.expect("built-in messages are sound");
            registry.messages.push(Message { schema: Arc::new(schema), response: response.map(str::to_owned) });
        };
        built_in(Schema::of::<VectorAddRequest>(), Some("VectorAddResponse"));
        built_in(Schema::of::<VectorAddResponse>(), None);
        registry.built_in = registry.messages.len();
        registry
    }
}

impl Registry {
    /// Adds a message, which `response` answers, be that known already or not.
    pub fn add(&mut self, name: &str, members: Vec<Member>, response: Option<&str>) -> Result<(), RegistryError> {
        match self.messages.iter().position(|known| known.schema.name() == name) {
            Some(at) if at < self.built_in => return Err(RegistryError::BuiltIn(name.to_owned())),
            Some(_) => return Err(RegistryError::Twice(name.to_owned())),
            None => {}
        }
        let schema = Arc::new(Schema::new(name, members)?);
        self.messages.push(Message { schema, response: response.map(str::to_owned) });
        Ok(())
    }

    /// The message of this name.
    pub fn find(&self, name: &str) -> Option<&Message> {
        self.messages.iter().find(|message| message.schema.name() == name)
    }

    /// Every message, the built-in ones first.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Those that are not built in.
    pub fn added(&self) -> &[Message] {
        &self.messages[self.built_in..]
    }
}
