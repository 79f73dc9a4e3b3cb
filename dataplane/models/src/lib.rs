//! Models of what threads share without locks. Under `--cfg loom` its tests go through every order of the steps of
//! `berth-ring`, `berth-lease` and `berth-admission`.
#![forbid(unsafe_code)]
