//! Both sides of a connection in one thread, joined by a simulated socket and a simulated clock, so
//! that any interleaving can be tried and any failure repeated from its seed or from its bytes.

mod choices;
mod model;
mod pair;
mod plans;
mod random;
mod scenarios;
mod socket;
mod tokens;
mod violations;
