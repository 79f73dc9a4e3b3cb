//! The load generators, each against a server of its own or in virtual time, and what they report.

mod common;

mod lease;
mod loopback;
mod nvme;
mod reports;
mod simulation;
mod udp;
