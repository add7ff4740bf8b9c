//! Models of what users are charged for.

use std::sync::atomic::AtomicU64;

use shorthaul_platform::memory::Draft;

use super::*;
use crate::sync::{explore, thread};

fn accounts() -> Arc<Accounts> {
    Accounts::new(UserLimits {
        connections_max: 2,
        calls_max: 2,
        inline_bytes_max: BYTES_MAX,
        regions_max: 2,
        region_bytes_max: BYTES_MAX,
        lent_max: 1,
        lent_bytes_max: BYTES_MAX,
    })
}

fn charge(accounts: &Accounts, holder: &Holder, whose: Whose, bytes: u64) -> Option<Share> {
    accounts.charge(holder, whose, bytes, drop).ok()
}

/// Runs `work` on a thread that may charge the account, as handlers do.
fn handler<T: 'static>(
    accounts: &Arc<Accounts>,
    member: &Membership,
    work: impl FnOnce(&Accounts, &Holder) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let (accounts, holder) = (Arc::clone(accounts), Holder::clone(member.account()));
    thread::spawn(move || work(&accounts, &holder))
}

fn is_all_given_back(holder: &Holder) -> bool {
    [Whose::Client, Whose::Server].into_iter().all(|whose| {
        let memory = holder.memory(whose);
        memory.pieces.is_zero() && memory.bytes.is_zero()
    })
}

#[test]
fn shares_never_exceed_the_limit_and_all_is_given_back() {
    explore(|| {
        let accounts = accounts();
        let member = accounts.join(7).unwrap();
        let held = Arc::new(AtomicU64::new(0));
        let handlers = [6, 4, 5].map(|bytes| {
            let held = Arc::clone(&held);
            handler(&accounts, &member, move |accounts, holder| {
                let mut share = charge(accounts, holder, Whose::Client, bytes)?;
                let all = held.fetch_add(bytes, Ordering::Relaxed) + bytes;
                assert!(all <= BYTES_MAX, "{all} bytes at once");
                held.fetch_sub(2, Ordering::Relaxed);
                share.cut(bytes - 2);
                held.fetch_sub(bytes - 2, Ordering::Relaxed);
                Some(())
            })
        });
        let charged = handlers.into_iter().filter_map(|handler| handler.join().unwrap());
        assert!(charged.count() >= 1);
        assert!(is_all_given_back(member.account()));
        drop(member);
        assert!(accounts.users.lock().unwrap().is_empty());
    });
}

#[test]
fn what_is_cut_is_room_for_another_at_once() {
    explore(|| {
        let accounts = accounts();
        let member = accounts.join(7).unwrap();
        let cut = handler(&accounts, &member, |accounts, holder| {
            let mut share = charge(accounts, holder, Whose::Client, 6)?;
            share.cut(4);
            Some(share)
        });
        let small = handler(&accounts, &member, |accounts, holder| {
            drop(charge(accounts, holder, Whose::Client, 3));
        });
        let share = cut.join().unwrap().unwrap();
        small.join().unwrap();
        assert!(charge(&accounts, member.account(), Whose::Client, 7).is_none(), "too much");
        let rest = charge(&accounts, member.account(), Whose::Client, 6);
        assert!(rest.is_some(), "what was cut is still charged");
        drop((share, rest));
        assert!(is_all_given_back(member.account()));
    });
}

#[test]
fn one_that_is_refused_for_its_bytes_takes_no_piece_from_another() {
    explore(|| {
        let accounts = accounts();
        let member = accounts.join(7).unwrap();
        // One piece is left, and five bytes.
        let _held = charge(&accounts, member.account(), Whose::Client, 5).unwrap();
        let refused = handler(&accounts, &member, |accounts, holder| {
            charge(accounts, holder, Whose::Client, 11).is_some()
        });
        assert!(charge(&accounts, member.account(), Whose::Client, 1).is_some());
        assert!(!refused.join().unwrap());
    });
}

#[test]
fn one_that_is_refused_takes_no_room_from_another() {
    explore(|| {
        let accounts = accounts();
        let member = accounts.join(7).unwrap();
        let _held = charge(&accounts, member.account(), Whose::Client, 5).unwrap();
        let refused = handler(&accounts, &member, |accounts, holder| {
            charge(accounts, holder, Whose::Client, 6).is_some()
        });
        assert!(charge(&accounts, member.account(), Whose::Client, 5).is_some());
        assert!(!refused.join().unwrap());
    });
}

#[test]
fn what_came_back_is_room_for_one() {
    explore(|| {
        let accounts = accounts();
        let member = accounts.join(7).unwrap();
        let share = charge(&accounts, member.account(), Whose::Server, 6).unwrap();
        let sealed = Draft::create("model", 6).unwrap().seal(6).unwrap();
        let (gift, watch) = LentFile::lend(sealed).unwrap();
        accounts.lend(watch, share);
        drop(gift);
        let handlers = [1, 2].map(|_| {
            handler(&accounts, &member, |accounts, holder| {
                charge(accounts, holder, Whose::Server, 6)
            })
        });
        let shares: Vec<_> = handlers.into_iter().filter_map(|one| one.join().unwrap()).collect();
        assert_eq!(shares.len(), 1);
        drop(shares);
        assert!(is_all_given_back(member.account()));
    });
}

#[test]
fn an_account_in_use_is_found_by_who_comes_back() {
    explore(|| {
        let accounts = accounts();
        let member = accounts.join(7).unwrap();
        let handler = handler(&accounts, &member, |accounts, holder| {
            charge(accounts, holder, Whose::Client, 6)
        });
        let reactor = thread::spawn(move || drop(member));
        let again = accounts.join(7).unwrap();
        let share = handler.join().unwrap().unwrap();
        reactor.join().unwrap();
        assert!(Holder::ptr_eq(again.account(), &share.account), "two accounts of one user");
        assert!(charge(&accounts, again.account(), Whose::Client, 6).is_none());
    });
}

#[test]
fn an_account_that_outlived_its_connections_goes_with_a_later_one() {
    explore(|| {
        let accounts = accounts();
        let member = accounts.join(7).unwrap();
        let handler = handler(&accounts, &member, |accounts, holder| {
            drop(charge(accounts, holder, Whose::Client, 6));
        });
        drop(member);
        handler.join().unwrap();
        drop(accounts.join(8).unwrap());
        assert!(accounts.users.lock().unwrap().is_empty());
    });
}

#[test]
fn an_account_is_forgotten_with_its_last_connection() {
    explore(|| {
        let accounts = accounts();
        let members = [(); 2].map(|()| {
            let accounts = Arc::clone(&accounts);
            thread::spawn(move || drop(accounts.join(7).unwrap()))
        });
        members.into_iter().for_each(|member| member.join().unwrap());
        assert!(accounts.users.lock().unwrap().is_empty());
    });
}

const BYTES_MAX: u64 = 10;
