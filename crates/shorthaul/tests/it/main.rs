//! The library from outside: real sockets, real memory, real processes.

mod hostile;
mod lanes;
