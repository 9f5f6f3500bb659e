//! How work in the background shares processors with work that somebody waits for.

/// Lets the calling thread, and all threads that it begins from now on, come after the others while these keep all
/// processors busy. Otherwise a segment that is brought into history takes as much of a busy processor as those whose
/// records are waited for.
///
/// It still gets a fifth of what another thread gets at the least, so nothing starves: and a writer that waits for it, because
/// too many segments wait, leaves it the processor.
pub(crate) fn step_back() {
    // A process that is nicer as a whole stays so, and a system that says no is no worse off than before.
    let nice = rustix::process::getpriority_process(None);
    if nice.is_ok_and(|nice| nice < NICE) {
        let _ = rustix::process::setpriority_process(None, NICE);
    }
}

/// On Linux this is the priority of a thread, not of its process. Of two busy threads on one processor, the one that is so
/// nice gets about a quarter.
const NICE: i32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_thread_that_asks_steps_back_and_those_it_begins() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let before = nice();
        let (own, begun) = std::thread::spawn(move || {
            step_back();
            (nice(), std::thread::spawn(nice).join().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!((own, begun), (NICE.max(before), NICE.max(before)));
        assert_eq!(nice(), before);
    }
}
