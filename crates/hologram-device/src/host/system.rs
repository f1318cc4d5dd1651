//! Information about the machine.

/// The processor's name, or "CPU" where the system does not report it.
pub fn processor_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    field(&info, "model name").unwrap_or("CPU").to_string()
}

/// Bytes of memory; 0 where the system does not report it.
pub fn memory_bytes() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = field(&info, "MemTotal").and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0).saturating_mul(1024)
}

/// Bytes of memory that this process may still allocate, including page cache that the system can reclaim, within the
/// limit of its control group if it has one; `None` where the system does not report it.
pub fn available_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kilobytes = field(&info, "MemAvailable")?.split_whitespace().next()?.parse::<u64>().ok()?;
    let group = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    // Of the group's memory, only anonymous pages cannot be reclaimed.
    let limit = group("memory.max").and_then(|max| max.trim().parse::<u64>().ok());
    let held =
        group("memory.stat").and_then(|stat| stat.lines().find_map(|l| l.strip_prefix("anon ")?.parse::<u64>().ok()));
    let rest = limit.map_or(u64::MAX, |limit| limit.saturating_sub(held.unwrap_or(0)));
    Some(kilobytes.saturating_mul(1024).min(rest))
}

/// Threads to use: as many as the process may run at once, but one per physical core, because two threads of a core
/// share its vector units.
pub fn default_threads() -> usize {
    let available = std::thread::available_parallelism().map_or(1, |n| n.get());
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    match physical_cores(&info) {
        0 => available,
        cores => available.min(cores),
    }
}

/// The number of different pairs of socket and core; 0 when the text has none.
fn physical_cores(info: &str) -> usize {
    let mut cores: Vec<(&str, &str)> = info
        .split("\n\n")
        .filter_map(|processor| Some((field(processor, "physical id")?, field(processor, "core id")?)))
        .collect();
    cores.sort_unstable();
    cores.dedup();
    cores.len()
}

/// The value of the first line `name: value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name).map(|(_, v)| v.trim())
}

#[cfg(test)]
mod tests {
    #[test]
    fn threads_of_one_core_count_once() {
        let thread = |socket, core| format!("processor\t: 0\nphysical id\t: {socket}\ncore id\t\t: {core}\n");
        let text = [thread(0, 0), thread(0, 1), thread(0, 0), thread(1, 1)].join("\n");
        assert_eq!(super::physical_cores(&text), 3);
        assert_eq!(super::physical_cores("Processor: ARM\n"), 0);
    }
}
