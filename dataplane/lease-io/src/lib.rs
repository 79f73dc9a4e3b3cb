//! Access to leased memory and blocks: two-sided messages, FBMU, FBBU, FBMT, FBBT and pages, without I/O.
#![forbid(unsafe_code)]
