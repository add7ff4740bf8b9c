//! The library from outside: real sockets, real memory, real processes.
#![allow(clippy::unwrap_used, reason = "tests")]

mod automatic;
mod census;
mod child;
mod deadlines;
mod descriptors;
mod environment;
mod every_lane;
mod fairness;
mod hand_over;
mod handlers;
mod hostile;
mod kill;
mod lanes;
mod large;
mod load;
mod looking;
mod pages;
mod peers;
mod relay;
mod service;
mod soak;
mod socket_file;
mod workload;
