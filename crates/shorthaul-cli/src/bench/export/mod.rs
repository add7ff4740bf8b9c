//! A report in several forms. Exporters format; they measure and compute nothing.

pub(super) mod json;
pub(super) mod seed;
pub(super) mod table;
#[cfg(test)]
mod tests;
mod verdict;
