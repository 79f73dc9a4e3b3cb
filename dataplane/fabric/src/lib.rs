//! A fabricBIOS node without I/O: the ops of its control plane, discovery, and what it journals.
#![forbid(unsafe_code)]
