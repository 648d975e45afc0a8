//! Which process of this host listens on a port, when it was started, and which unit it belongs to.

use std::fs;

use super::live::Target;

/// The listener on a port. Other users' processes are out of reach: then only the port is known.
pub fn listening(port: u16) -> Target {
    let pid = socket_inodes(port).iter().find_map(|inode| holder(inode));
    Target { port, pid, started: pid.and_then(started) }
}

/// The unit that a process belongs to, and whether it is one of the user's own service manager.
pub fn unit_of(pid: u32) -> Option<(String, bool)> {
    unit_in(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

fn unit_in(cgroups: &str) -> Option<(String, bool)> {
    let path = cgroups.lines().find_map(|line| {
        let path = line.splitn(3, ':').nth(2)?;
        path.rsplit('/').any(|part| part.ends_with(".service")).then_some(path)
    })?;
    let unit = path.rsplit('/').find(|part| part.ends_with(".service"))?;
    // The user's service manager is a unit itself; what stands below it is a user's unit.
    let users = path.contains("/user@");
    (!unit.starts_with("user@")).then(|| (unit.to_owned(), users))
}

/// The words that a process was started with.
pub fn argv(pid: u32) -> Option<Vec<String>> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let words: Vec<String> = text.trim_end_matches('\0').split('\0').map(str::to_owned).collect();
    (!words[0].is_empty()).then_some(words)
}

fn socket_inodes(port: u16) -> Vec<String> {
    const LISTENS: &str = "0A";
    let wanted = format!(":{port:04X}");
    let mut inodes = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = fs::read_to_string(table).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if let [_, local, _, state, .., _, _, _, _, _] = fields[..]
                && local.ends_with(&wanted)
                && state == LISTENS
                && let Some(inode) = fields.get(9)
            {
                inodes.push(format!("socket:[{inode}]"));
            }
        }
    }
    inodes
}

fn holder(socket: &str) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|item| item.file_name().to_str()?.parse().ok()).find(|pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|to| to.as_os_str() == socket)
    })
}

/// Seconds since 1970; the kernel counts in hundredths of a second since the boot.
fn started(pid: u32) -> Option<f64> {
    const TICKS_PER_S: f64 = 100.0;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in brackets and may hold anything; the 20th field after it is the start.
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let kernel = fs::read_to_string("/proc/stat").ok()?;
    let boot = kernel.lines().find_map(|line| line.strip_prefix("btime "))?;
    Some(boot.trim().parse::<f64>().ok()? + ticks / TICKS_PER_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_by_its_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = listening(port);
        assert_eq!(target.pid, Some(std::process::id()));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let age = now.as_secs_f64() - target.started.unwrap();
        assert!((-2.0..3600.0).contains(&age), "{age}");
        assert!(argv(std::process::id()).is_some());
        drop(listener);
        assert_eq!(listening(port).pid, None);
    }

    #[test]
    fn units_in_control_groups() {
        let unit = |text: &str| unit_in(text);
        assert_eq!(
            unit("0::/system.slice/sglang.service\n"),
            Some(("sglang.service".to_owned(), false))
        );
        let users = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service\n";
        assert_eq!(unit(users), Some(("llm.service".to_owned(), true)));
        assert_eq!(unit("0::/user.slice/user-1000.slice/user@1000.service/app.slice\n"), None);
        assert_eq!(unit("0::/\n"), None);
    }
}
