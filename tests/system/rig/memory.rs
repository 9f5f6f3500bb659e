//! The memory of a process.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::Encke;

/// Private resident memory.
pub(crate) fn anonymous_memory_bytes(encke: &Encke) -> u64 {
    let path = format!("/proc/{}/status", encke.pid());
    let status = std::fs::read_to_string(path).expect("the server runs");
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB"))
        .expect("the kernel reports it");
    kib.trim().parse::<u64>().expect("a number") << 10
}

/// How often bytes stand on the stacks of a process whose threads are waiting.
pub(crate) fn found_on_stacks(pid: u32, bytes: &[u8]) -> usize {
    let memory = File::open(format!("/proc/{pid}/mem")).expect("it is ours");
    let mut count = 0;
    for stack in stacks(pid) {
        let mut content = vec![0; (stack.end - stack.start) as usize];
        // A page that was never used has no content.
        if memory.read_exact_at(&mut content, stack.start).is_ok() {
            let places = content.windows(bytes.len());
            count += places.filter(|place| *place == bytes).count();
        }
    }
    count
}

/// The mappings that hold the stacks of all threads.
fn stacks(pid: u32) -> Vec<Range<u64>> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it is ours");
    let number = |text: &str| u64::from_str_radix(text, 16).expect("a number");
    let mappings: Vec<_> = maps
        .lines()
        .filter_map(|line| line.split(' ').next()?.split_once('-'))
        .map(|(start, end)| number(start)..number(end))
        .collect();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it is ours");
    let mut stacks = Vec::new();
    for task in tasks {
        let place = task.expect("it is ours").path().join("syscall");
        let line = std::fs::read_to_string(place).unwrap_or_default();
        // Behind the number of the call and its arguments stand the stack pointer and the place in the code.
        let words: Vec<_> = line.split_whitespace().collect();
        let Some(pointer) = words.len().checked_sub(2).map(|at| words[at]) else {
            continue;
        };
        let Some(pointer) = pointer.strip_prefix("0x").map(number) else {
            continue;
        };
        stacks.extend(mappings.iter().find(|map| map.contains(&pointer)).cloned());
    }
    assert!(!stacks.is_empty(), "a process has a stack");
    stacks
}
