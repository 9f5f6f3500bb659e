//! Starts that fail at every point, on a disk that tears what was not synced.

use encke_log::simulated::{Faults, SimulatedDisk};
use encke_log::{Log, Options};

#[test]
fn two_starts_that_fail_anywhere_and_a_power_cut_leave_a_log_that_opens() {
    // How unsynced writes are torn is random.
    for seed in 1..=24 {
        let fails_at = |disk: &SimulatedDisk, operation| {
            disk.set_faults(Faults {
                failing_operation: operation,
                ..Faults::default()
            });
            let options = Options {
                segment_bytes: 4096,
                history: false,
                ..Options::default()
            };
            Log::open_on(disk.clone(), options, &mut |_| {})
        };
        let mut first = 0;
        loop {
            first += 1;
            let mut second = 0;
            let mut first_opens = false;
            loop {
                second += 1;
                let disk = SimulatedDisk::new(seed);
                first_opens |= fails_at(&disk, Some(first)).is_ok();
                let second_opens = fails_at(&disk, Some(second)).is_ok();
                disk.cut_power();
                if let Err(error) = fails_at(&disk, None) {
                    panic!("seed {seed}, failing operations {first} and {second}: {error}");
                }
                if second_opens {
                    break;
                }
            }
            if first_opens {
                break;
            }
        }
        assert!(first > 5, "{first} operations of a start");
    }
}
