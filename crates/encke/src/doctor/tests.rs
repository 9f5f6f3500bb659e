use std::fs;

use super::*;

/// A machine made of files.
fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let machine = Machine::read(root.path());
    (root, machine)
}

const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max processes             unlimited            unlimited            processes \n\
                      Max open files            1024                 1048576              files     \n";

/// One that is large enough for a hundred thousand connections.
const LARGE: &[(&str, &str)] = &[
    ("proc/self/limits", LIMITS),
    ("proc/self/cgroup", "0::/system.slice/encke.service\n"),
    ("proc/sys/fs/nr_open", "1048576\n"),
    ("proc/sys/fs/file-max", "9223372036854775807\n"),
    ("proc/sys/fs/file-nr", "2000\t0\t9223372036854775807\n"),
    ("proc/sys/fs/epoll/max_user_watches", "5491511\n"),
    ("proc/sys/net/core/somaxconn", "4096\n"),
    ("proc/sys/net/ipv4/tcp_max_syn_backlog", "4096\n"),
    ("proc/sys/net/core/netdev_max_backlog", "16384\n"),
    ("proc/sys/net/ipv4/tcp_mem", "287901\t383868\t575802\n"),
    ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t33554432\n"),
    ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n"),
    ("proc/sys/net/core/rmem_max", "4194304\n"),
    ("proc/sys/net/core/wmem_max", "4194304\n"),
    ("proc/sys/net/ipv4/ip_local_port_range", "1024\t65535\n"),
    ("proc/sys/net/netfilter/nf_conntrack_max", "262144\n"),
    ("proc/sys/net/netfilter/nf_conntrack_count", "1000\n"),
    (
        "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established",
        "432000\n",
    ),
    ("proc/sys/vm/max_map_count", "65530\n"),
    (
        "proc/meminfo",
        "MemTotal: 16000000 kB\nMemAvailable:   12000000 kB\n",
    ),
    (
        "sys/kernel/mm/transparent_hugepage/enabled",
        "always [madvise] never\n",
    ),
    ("sys/fs/cgroup/system.slice/memory.max", "max\n"),
    (
        "sys/fs/cgroup/system.slice/encke.service/memory.max",
        "max\n",
    ),
    (
        "sys/fs/cgroup/system.slice/encke.service/pids.max",
        "4915\n",
    ),
    (
        "sys/devices/system/clocksource/clocksource0/current_clocksource",
        "tsc\n",
    ),
];

fn with(changes: &[(&'static str, &'static str)]) -> (tempfile::TempDir, Machine) {
    let mut files = LARGE.to_vec();
    for change in changes {
        files.retain(|file| file.0 != change.0);
        files.push(*change);
    }
    machine(&files)
}

/// Some directory on some disk.
fn data() -> Data {
    let root = tempfile::tempdir().unwrap();
    let ahead = Ahead {
        segment_bytes: 4096,
        waiting: 3,
    };
    Data::look(root.path(), 1, ahead)
}

/// Whether a check is about the data, which is where tests run and may be anything.
fn is_of_data(check: &&Check) -> bool {
    let names = ["directory", "file system", "free space", "fdatasync"];
    names.contains(&&*check.name) || check.name.starts_with("data,")
}

fn report(machine: &Machine, connections: u64) -> Report {
    Report::new(machine, connections, &config(), data())
}

fn check<'a>(report: &'a Report, name: &str) -> &'a Check {
    report
        .checks
        .iter()
        .find(|check| check.name == name)
        .unwrap()
}

#[test]
fn a_long_path_makes_no_column_wide() {
    let (_root, machine) = with(&[]);
    let long = "a-directory".repeat(20);
    let mut report = report(&machine, 60_000);
    let check = &mut report.checks[0];
    check.name = format!("data, {long}").into();
    check.value.clone_from(&long);
    let text = report.to_string();
    let table = text.lines().take_while(|line| !line.is_empty());
    for line in table.filter(|line| !line.contains(&long)) {
        assert!(line.chars().count() <= 110, "{line}");
    }
    assert!(text.contains(&format!("data, {long}\n")), "{text}");
}

#[test]
fn a_large_machine_fits_a_hundred_thousand_and_says_what_a_million_needs() {
    let (_root, machine) = with(&[]);
    let fits = report(&machine, 60_000);
    assert!(fits.fits && fits.unknown == 0, "{fits}");
    assert!(
        fits.checks
            .iter()
            .filter(|check| !is_of_data(check))
            .all(|check| check.verdict == Verdict::Fits),
        "{fits}"
    );
    assert_eq!(fits.set, []);
    assert!(
        fits.to_string().ends_with("60,000 connections fit.\n"),
        "{fits}"
    );

    let million = report(&machine, 1_000_000);
    assert!(!million.fits);
    assert_eq!(
        check(&million, "RLIMIT_NOFILE, hard").verdict,
        Verdict::Fits,
        "1048576 is enough"
    );
    assert_eq!(
        check(&million, "net.netfilter.nf_conntrack_max").verdict,
        Verdict::TooLow
    );
    assert_eq!(
        check(&million, "net.ipv4.ip_local_port_range").need,
        "16 source addresses"
    );
    let lines: Vec<_> = million.set.iter().map(|line| line.line.as_str()).collect();
    assert_eq!(
        lines,
        [
            "net.ipv4.tcp_mem = 750000 1000000 1500000",
            "net.ipv4.ip_local_port_range = 1024 65535",
            "net.netfilter.nf_conntrack_max = 1251250",
        ]
    );
    let text = million.to_string();
    assert!(text.contains("In /etc/sysctl.d/90-encke.conf:"), "{text}");
    assert!(
        text.ends_with("1,000,000 connections do not fit.\n"),
        "{text}"
    );
}

#[test]
fn each_limit_that_is_too_low_is_found_alone_with_the_line_that_raises_it() {
    for (path, text, name, line, verdict) in [
        (
            "proc/self/limits",
            "Max open files   1024   20000   files\n",
            "RLIMIT_NOFILE, hard",
            "LimitNOFILE=60512",
            Verdict::TooLow,
        ),
        (
            "proc/sys/fs/nr_open",
            "50000\n",
            "fs.nr_open",
            "fs.nr_open = 60512",
            Verdict::TooLow,
        ),
        (
            "proc/sys/fs/file-max",
            "60512\n",
            "fs.file-max",
            "fs.file-max = 62512",
            Verdict::TooLow,
        ),
        (
            "proc/sys/fs/epoll/max_user_watches",
            "59999\n",
            "fs.epoll.max_user_watches",
            "fs.epoll.max_user_watches = 60000",
            Verdict::TooLow,
        ),
        (
            "proc/sys/net/ipv4/tcp_mem",
            "1000 2000 3000\n",
            "net.ipv4.tcp_mem, pressure",
            "net.ipv4.tcp_mem = 45000 60000 90000",
            Verdict::TooLow,
        ),
        (
            "proc/sys/net/netfilter/nf_conntrack_max",
            "60000\n",
            "net.netfilter.nf_conntrack_max",
            "net.netfilter.nf_conntrack_max = 76250",
            Verdict::TooLow,
        ),
        (
            "sys/fs/cgroup/system.slice/encke.service/pids.max",
            "10\n",
            "control group, threads",
            "TasksMax=64",
            Verdict::TooLow,
        ),
        (
            "proc/sys/net/core/somaxconn",
            "128\n",
            "net.core.somaxconn",
            "net.core.somaxconn = 4096",
            Verdict::Advice,
        ),
        (
            "proc/sys/net/core/wmem_max",
            "65536\n",
            "net.core.wmem_max",
            "net.core.wmem_max = 131072",
            Verdict::Advice,
        ),
        (
            "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established",
            "60\n",
            "nf_conntrack_tcp_timeout_established",
            "net.netfilter.nf_conntrack_tcp_timeout_established = 3600",
            Verdict::Advice,
        ),
        (
            "sys/kernel/mm/transparent_hugepage/enabled",
            "[always] madvise never\n",
            "transparent huge pages",
            "w /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise",
            Verdict::Advice,
        ),
    ] {
        let (_root, machine) = with(&[(path, text)]);
        let report = report(&machine, 60_000);
        assert_eq!(check(&report, name).verdict, verdict, "{report}");
        assert!(
            report.set.iter().any(|set| set.line == line),
            "{line}: {report}"
        );
        assert_eq!(report.fits, verdict == Verdict::Advice, "{report}");
        let others = report.checks.iter().filter(|check| !is_of_data(check));
        let others = others.filter(|check| check.name != name);
        assert!(
            others.clone().all(|check| check.verdict == Verdict::Fits),
            "{report}"
        );
    }
}

#[test]
fn the_tightest_control_group_and_the_estimated_memory_decide() {
    // A limit of the group above, and of the old kind.
    let above = [("sys/fs/cgroup/system.slice/memory.max", "268435456\n")];
    let old = [
        ("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/box\n0::/\n"),
        (
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes",
            "268435456\n",
        ),
        (
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        ),
    ];
    for changes in [&above[..], &old] {
        let (_root, machine) = with(changes);
        assert_eq!(machine.cgroup_memory, Some(256 << 20));
        assert_eq!(machine.memory_usable(), Some(256 << 20));
        assert!(report(&machine, 10_000).fits);
        let report = report(&machine, 60_000);
        assert!(!report.fits);
        for name in ["memory", "control group, memory"] {
            assert_eq!(check(&report, name).verdict, Verdict::TooLow, "{report}");
        }
        let line = format!("MemoryMax={}", report.memory_total_bytes);
        assert!(report.set.iter().any(|set| set.line == line), "{report}");
    }
    let used = [
        above[0],
        (
            "sys/fs/cgroup/system.slice/encke.service/memory.current",
            "200000000\n",
        ),
    ];
    let (_root, machine) = with(&used);
    assert_eq!(machine.memory_usable(), Some((256 << 20) - 200_000_000));
    assert!(!report(&machine, 10_000).fits);
}

#[test]
fn what_is_missing_or_nonsense_is_unknown_and_no_reason_to_refuse() {
    let nonsense: Vec<_> = LARGE.iter().map(|(path, _)| (*path, "-1 x\n\0[")).collect();
    for files in [Vec::new(), nonsense] {
        let (_root, machine) = machine(&files);
        let report = Report::new(&machine, 100_000_000, &config(), data());
        assert!(report.fits, "{report}");
        assert!(report.unknown > 15, "{report}");
        assert!(
            report.to_string().contains("values are unknown here"),
            "{report}"
        );
        assert_eq!(report.set, []);
    }
    let (_root, machine) = with(&[(
        "proc/self/limits",
        "Max open files unlimited unlimited files\n",
    )]);
    assert_eq!(machine.files_hard, Some(u64::MAX));
}

#[test]
fn a_slow_clock_is_said() {
    let (_root, machine) = with(&[(
        "sys/devices/system/clocksource/clocksource0/current_clocksource",
        "hpet\n",
    )]);
    let report = report(&machine, 1_000);
    assert_eq!(check(&report, "clock source").verdict, Verdict::Advice);
    assert!(report.fits);
}

#[test]
fn this_very_machine_has_limits() {
    let machine = Machine::read(Path::new("/"));
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    // Other tests may raise the soft one.
    assert_eq!(machine.files_hard, Some(limit.maximum.unwrap_or(u64::MAX)));
    assert!(machine.memory_available.unwrap() > 1 << 20);
    let report = report(&machine, 1);
    assert!(
        check(&report, "RLIMIT_NOFILE, soft").verdict == Verdict::Fits,
        "{report}"
    );
}

/// The defaults, on a port that the system chooses.
fn config() -> Config {
    let mut config = Config::default();
    config.net.listen.set_port(0);
    config
}
