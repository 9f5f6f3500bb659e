//! The priority of background threads.

/// Lowers the priority of the calling thread, and of all threads that it starts later. Otherwise ingesting a segment
/// into history takes as much of a busy processor as the threads that clients wait for.
///
/// The thread still gets about a quarter of a busy processor, so it does not starve. A writer that waits for it,
/// because too many segments wait, uses no processor time.
pub(crate) fn lower_priority() {
    // The priority of a process that is nicer already stays. Without permission nothing changes.
    let nice = rustix::process::getpriority_process(None);
    if nice.is_ok_and(|nice| nice < NICE) {
        let _ = rustix::process::setpriority_process(None, NICE);
    }
}

/// On Linux this is the priority of a thread, not of its process. Of two busy threads on one processor, the one with
/// this value gets about a quarter.
const NICE: i32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_priority_holds_for_the_thread_and_those_that_it_starts() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let before = nice();
        let (own, begun) = std::thread::spawn(move || {
            lower_priority();
            (nice(), std::thread::spawn(nice).join().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!((own, begun), (NICE.max(before), NICE.max(before)));
        assert_eq!(nice(), before);
    }
}
