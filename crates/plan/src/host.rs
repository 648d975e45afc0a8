//! What this machine lets this process use. The only file here that reads anything.

use std::fs;
use std::path::Path;

/// The machine as the plan sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Name of the processor.
    pub cpu_name: String,
    /// Cores that this process may use: affinity and CPU quota are respected.
    pub n_cores: usize,
    /// Memory that this process may still take.
    pub memory_bytes: u64,
    /// What sets that limit.
    pub memory_limit: MemoryLimit,
}

/// What limits the memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    /// What the machine has free or can free (`MemAvailable`).
    Machine,
    /// The limit of a control group (a container, a systemd unit).
    Cgroup,
}

/// The system does not say how much memory there is.
#[derive(Debug, thiserror::Error)]
#[error("/proc/meminfo says nothing about available memory; is /proc mounted?")]
pub struct HostError;

impl Host {
    /// Reads this machine.
    ///
    /// # Errors
    /// When the system does not say how much memory is available.
    pub fn detect() -> Result<Self, HostError> {
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::read(Path::new("/"), n_cores)
    }

    /// Reads the machine whose `/proc` and `/sys` lie under `root`.
    ///
    /// # Errors
    /// As [`Self::detect`].
    pub fn read(root: &Path, n_cores: usize) -> Result<Self, HostError> {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let available = meminfo(&text("proc/meminfo"), "MemAvailable:").ok_or(HostError)?;
        let cgroup = cgroup_room(&root.join("sys/fs/cgroup"), &text("proc/self/cgroup"));
        let (memory_bytes, memory_limit) = match cgroup {
            Some(room) if room < available => (room, MemoryLimit::Cgroup),
            _ => (available, MemoryLimit::Machine),
        };
        let cpu_name = cpu_name(&text("proc/cpuinfo"));
        Ok(Self { cpu_name, n_cores, memory_bytes, memory_limit })
    }
}

/// A line of `/proc/meminfo`, in bytes.
fn meminfo(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

fn cpu_name(cpuinfo: &str) -> String {
    let value = |line: &str| line.split_once(':').map(|(_, value)| value.trim().to_string());
    cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))
        .and_then(value)
        .unwrap_or_else(|| std::env::consts::ARCH.to_string())
}

/// What the control groups of this process leave: the least of limit minus use on the way from its
/// own group to the root. `None` where none has a limit.
fn cgroup_room(mount: &Path, memberships: &str) -> Option<u64> {
    let mut rooms = Vec::new();
    for line in memberships.lines() {
        // hierarchy:controllers:path, with no controllers in version 2
        let mut fields = line.splitn(3, ':');
        let (_, Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (base, version) = if controllers.is_empty() {
            (mount.to_path_buf(), &V2)
        } else if controllers.split(',').any(|c| c == "memory") {
            (mount.join("memory"), &V1)
        } else {
            continue;
        };
        // In a container the path may be the host's, which does not exist here: then the root of
        // the mount is the container's own group.
        let own = base.join(path.trim_start_matches('/'));
        let own = if own.exists() { own } else { base.clone() };
        let groups = own.ancestors().take_while(|group| group.starts_with(&base));
        rooms.extend(groups.filter_map(|group| version.room(group)));
    }
    rooms.into_iter().min()
}

/// File names of a control-group version.
struct Version {
    limit: &'static str,
    usage: &'static str,
    /// Keys of `memory.stat` that count file cache, which gives way.
    cache: [&'static str; 2],
}

const V1: Version = Version {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cache: ["total_inactive_file", "total_active_file"],
};
const V2: Version = Version {
    limit: "memory.max",
    usage: "memory.current",
    cache: ["inactive_file", "active_file"],
};
/// Version 1 writes "no limit" as a number near the largest one.
const NO_LIMIT: u64 = 1 << 60;

impl Version {
    fn room(&self, group: &Path) -> Option<u64> {
        let read = |name: &str| fs::read_to_string(group.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let limit = number(self.limit).filter(|limit| *limit < NO_LIMIT)?;
        let stat = read("memory.stat").unwrap_or_default();
        let entry = |key: &str| {
            let value = stat.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
            value.and_then(|value| value.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        let cache: u64 = self.cache.iter().map(|key| entry(key)).sum();
        let used = number(self.usage).unwrap_or(0).saturating_sub(cache);
        Some(limit.saturating_sub(used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A root with the given files, and what is read from it.
    fn read(files: &[(&str, &str)]) -> Host {
        let root = tempfile::tempdir().unwrap();
        let meminfo = ("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:   16777216 kB\n");
        for (path, text) in [meminfo].iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Host::read(root.path(), 3).unwrap()
    }

    #[test]
    fn without_a_limit_the_machine_decides() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\nmodel name\t: other\n";
        let host = read(&[("proc/cpuinfo", cpuinfo)]);
        let expected = Host {
            cpu_name: "Some CPU @ 3 GHz".to_string(),
            n_cores: 3,
            memory_bytes: 16 * GIB,
            memory_limit: MemoryLimit::Machine,
        };
        assert_eq!(host, expected);
        let unlimited =
            read(&[("proc/self/cgroup", "0::/a\n"), ("sys/fs/cgroup/a/memory.max", "max\n")]);
        assert_eq!(unlimited.memory_bytes, 16 * GIB);
        assert!(Host::detect().unwrap().memory_bytes > 0);
        assert!(Host::read(Path::new("/no/such/root"), 1).is_err());
    }

    #[test]
    fn the_tightest_group_on_the_way_to_the_root_decides() {
        let host = read(&[
            ("proc/self/cgroup", "0::/user/app\n"),
            ("sys/fs/cgroup/user/app/memory.max", "8589934592\n"),
            ("sys/fs/cgroup/user/app/memory.current", "3221225472\n"),
            ("sys/fs/cgroup/user/app/memory.stat", "anon 5\ninactive_file 1073741824\n"),
            ("sys/fs/cgroup/user/memory.max", "34359738368\n"),
        ]);
        // 8 GiB less 3 in use, of which 1 is file cache.
        assert_eq!((host.memory_bytes, host.memory_limit), (6 * GIB, MemoryLimit::Cgroup));

        let host = read(&[
            ("proc/self/cgroup", "0::/user/app\n"),
            ("sys/fs/cgroup/user/app/memory.max", "max\n"),
            ("sys/fs/cgroup/user/memory.max", "2147483648\n"),
        ]);
        assert_eq!(host.memory_bytes, 2 * GIB);
    }

    #[test]
    fn version_1_and_the_paths_of_containers_are_understood() {
        let host = read(&[
            ("proc/self/cgroup", "5:cpu:/x\n4:memory,hugetlb:/docker/abc\n"),
            // The host's path is not visible in the container.
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "4294967296\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "2147483648\n"),
            ("sys/fs/cgroup/memory/memory.stat", "total_active_file 1073741824\n"),
        ]);
        assert_eq!((host.memory_bytes, host.memory_limit), (3 * GIB, MemoryLimit::Cgroup));
        let host = read(&[
            ("proc/self/cgroup", "4:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!(host.memory_limit, MemoryLimit::Machine);
        // More in use than the limit: nothing is left, and nothing overflows.
        let host = read(&[
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "1000\n"),
            ("sys/fs/cgroup/memory.current", "2000\n"),
        ]);
        assert_eq!(host.memory_bytes, 0);
    }
}
