//! Both sides of a connection, each byte of the input a decision: of the applications, of the
//! socket between them, of a hostile peer in the place of one of them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| shorthaul::fuzzing::connection(bytes));
