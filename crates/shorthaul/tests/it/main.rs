//! The library from outside: real sockets, real memory, real processes.
#![allow(clippy::unwrap_used, reason = "tests")]

mod automatic;
mod child;
mod deadlines;
mod descriptors;
mod environment;
mod every_lane;
mod fairness;
mod hand_over;
mod handlers;
mod hostile;
mod lanes;
mod peers;
mod processes;
mod relay;
mod server_death;
mod service;
mod socket_file;
