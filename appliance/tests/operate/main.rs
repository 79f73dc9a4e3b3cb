//! What an operator sees and changes, through the real program.

#[path = "../common/mod.rs"]
mod common;

mod admin;
mod check;
mod command_line;
mod doctor;
mod log;
mod notify;
mod overrides;
mod page;
mod perf;
mod profiles;
mod reload;
mod schema;
mod top;
mod tune;
