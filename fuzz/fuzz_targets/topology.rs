//! Any files in the place of /sys and /proc.
#![no_main]

#[path = "../../crates/shorthaul-platform/tests/any_tree/mod.rs"]
mod any_tree;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| any_tree::check(bytes));
