// SPDX-License-Identifier: GPL-2.0

//! Tests that need a kernel; `verify/` of tlb-rs has the others.

use super::*;

#[kunit_tests(hvo)]
mod suite {
    use super::{
        pool::{
            Held,
            Resize, //
        },
        *,
    };
    use kernel::mm::pause::{
        with_paused,
        with_stopped,
        Pause,
        PausedCpus,
        Window, //
    };

    /// An emulated CPU may not run for a while.
    const PATIENT_NS: u64 = 1_000_000_000;

    fn paused<R>(f: impl Fn(&mut PausedCpus<'_>) -> R) -> (R, Pause) {
        loop {
            // The boot may still bring up CPUs.
            if let (Ok(result), pause) = with_paused(PATIENT_NS, &f) {
                return (result, pause);
            }
        }
    }

    #[test]
    fn a_pause_calls_once() {
        let (result, pause) = paused(|_cpus| 42);

        assert_eq!(result, 42);
        assert_eq!(pause.missing, None);
        assert!(pause.paused_ns < PATIENT_NS);
    }

    /// Nothing is left that a pause could have forgotten: a hundred of them follow each other.
    #[test]
    fn the_other_cpus_go_on() {
        for _ in 0..100 {
            paused(|_cpus| ());
        }
    }

    #[test]
    fn a_pause_that_is_cancelled_does_nothing() {
        let mut called = false;
        let (result, pause) = with_paused(0, |_cpus| called = true);

        assert_eq!(result.is_ok(), called);
        if result == Err(EAGAIN) {
            assert!(pause.missing.is_some());
        }
    }

    #[test]
    fn threads_stop_too() {
        let mut called = 0;

        assert_eq!(with_stopped(|_cpus| called += 1), Ok(()));
        assert_eq!(called, 1);
    }

    #[test]
    fn a_window_spans_its_runs() {
        let run = |addr, nr, shift| Run {
            addr,
            nr,
            shift,
            ..Default::default()
        };
        let runs = [
            run(0x5000, 2, 12),
            run(0x1000, 1, 12),
            run(0x20_0000, 1, 21),
        ];

        // SAFETY: It is not applied.
        assert_eq!(unsafe { Window::new(&runs) }.range(), 0x1000..0x40_0000);
    }

    #[test]
    fn a_store_has_room_and_no_more() {
        let mut store = Store::new(2).unwrap();

        assert_eq!((store.push(1), store.push(2)), (Ok(()), Ok(())));
        let first = &raw const store[0];

        assert_eq!(store.push(3), Err(3));
        store.truncate(1);
        assert_eq!(store.push(4), Ok(()));
        assert_eq!((&*store, &raw const store[0]), (&[1, 4][..], first));
        assert_eq!(store.drain_all().sum::<i32>(), 5);
        assert!(store.is_empty() && store.room() == 2);
    }

    /// Both C and `layout.rs` know how many entries a folio has.
    #[test]
    fn sizes_have_entries() {
        assert!(pool::sizes().count() > 0);
        for size in pool::sizes() {
            let entries = c::entries(size);

            if entries > 1 {
                let room = Change::Optimize.room(entries, usize::MAX, ENTRIES);

                assert!(entries.is_power_of_two() && room.units > 0);
                assert!(Batch::<Hugepages<'_>, _>::new(room).is_ok());
            }
        }
    }

    #[test]
    fn one_task_resizes_a_pool() {
        for size in pool::sizes() {
            let resize = Resize::try_lock(size).unwrap();

            assert!(Resize::try_lock(size).is_none());
            // And the attempt has unlocked nothing.
            assert!(Resize::try_lock(size).is_none());
            // Nothing is held, so that nobody waits for it.
            assert!(Held::take(&resize, 0).is_err());
            drop(resize);
            assert!(Resize::try_lock(size).is_some());
        }
    }
}
