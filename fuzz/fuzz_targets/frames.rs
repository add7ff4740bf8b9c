//! Any bytes, taken for a frame.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| shorthaul::fuzzing::frames(bytes));
