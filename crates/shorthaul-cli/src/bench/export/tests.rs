//! The forms of a report, with invented figures.
