//! What the repository says about its project: names from the remote, default branch, the user.

use muster_job::Secret;
use muster_pipeline::slug::slug;
use muster_source::Snapshot;

/// Facts that the predefined variables are made of.
#[derive(Debug, Clone, Default)]
pub(super) struct ProjectIdentity {
    /// `group/app`
    pub(super) path: String,
    /// The base of the remote's web pages: scheme, host and port. `None` without a remote that has a host.
    pub(super) server_url: Option<String>,
    /// Host and port of the remote, where it is reached by SSH.
    pub(super) ssh: Option<(String, u16)>,
    /// What stands before a project's path in the address of its repository: `git@host:`, `https://host/`.
    pub(super) clone_start: Option<String>,
    /// `user:password` of a remote whose address of HTTP holds them.
    pub(super) login: Option<Secret>,
    /// The default branch.
    pub(super) default_branch: String,
    /// `user.name`
    pub(super) user_name: Option<String>,
    /// `user.email`
    pub(super) user_email: Option<String>,
}

/// A remote's URL, taken apart.
#[derive(Debug, Clone)]
struct Remote {
    host: String,
    path: String,
    ssh_port: Option<u16>,
    /// The base of web pages: scheme, host and port.
    web: String,
    /// What stands before the path, without a password.
    start: String,
    login: Option<Secret>,
}

impl ProjectIdentity {
    /// Asks the repository.
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let config = snapshot.config(r"^(remote\..*\.url|user\.(name|email)|init\.defaultbranch)$");
        let value = |name: &str| config.iter().rfind(|(key, _)| key == name).map(|(_, value)| value.clone());
        let url = value("remote.origin.url")
            .or_else(|| config.iter().find(|(key, _)| key.starts_with("remote.")).map(|(_, value)| value.clone()));
        let remote = url.as_deref().and_then(parse_remote);
        let folder = snapshot.worktree.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let path = match &remote {
            Some(remote) => remote.path.clone(),
            None => format!("local/{}", path_part(&folder)),
        };
        let default_branch = snapshot
            .remote_default_branch()
            .or_else(|| ["main", "master"].into_iter().find(|name| has_branch(snapshot, name)).map(str::to_owned))
            .or_else(|| value("init.defaultbranch"))
            .unwrap_or_else(|| "main".to_owned());
        Self {
            server_url: remote.as_ref().map(|remote| remote.web.clone()),
            clone_start: remote.as_ref().map(|remote| remote.start.clone()),
            login: remote.as_ref().and_then(|remote| remote.login.clone()),
            ssh: remote.and_then(|remote| remote.ssh_port.map(|port| (remote.host, port))),
            path,
            default_branch,
            user_name: value("user.name"),
            user_email: value("user.email"),
        }
    }

    /// The base URL of the project's server: that of the remote, else `coordinator`.
    pub(super) fn server_or<'a>(&'a self, coordinator: &'a str) -> &'a str {
        self.server_url.as_deref().unwrap_or(coordinator).trim_end_matches('/')
    }

    /// `app`
    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// `group`
    pub(super) fn namespace(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(namespace, _)| namespace)
    }
}

fn has_branch(snapshot: &Snapshot, name: &str) -> bool {
    snapshot.branch.as_deref() == Some(name) || snapshot.resolve(&format!("refs/heads/{name}")).is_some()
}

/// A folder's name as a part of a project's path.
fn path_part(name: &str) -> String {
    let mapped: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' }).collect();
    let trimmed = mapped.trim_matches(['-', '.']);
    if trimmed.is_empty() { slug("project") } else { trimmed.to_owned() }
}

/// `https://host/group/app.git`, `ssh://git@host:22/group/app.git`, `git@host:group/app.git`; none for local paths.
fn parse_remote(url: &str) -> Option<Remote> {
    let clean = |path: &str| {
        let path = path.trim_matches('/');
        let path = path.strip_suffix(".git").unwrap_or(path).trim_end_matches('/').to_owned();
        (path.contains('/') && !path.contains("..")).then_some(path)
    };
    if let Ok(parsed) = url::Url::parse(url)
        && url.contains("://")
    {
        let host = parsed.host_str()?.to_owned();
        let path = clean(parsed.path())?;
        return match parsed.scheme() {
            scheme @ ("http" | "https") => {
                let port = parsed.port().map(|port| format!(":{port}")).unwrap_or_default();
                let web = format!("{scheme}://{host}{port}");
                let decoded = |text: &str| percent_decoded(text);
                let login = parsed
                    .password()
                    .map(|password| Secret::new(format!("{}:{}", decoded(parsed.username()), decoded(password))));
                Some(Remote { start: format!("{web}/"), web, host, path, ssh_port: None, login })
            }
            "ssh" | "git+ssh" => {
                let (user, port) = (parsed.username(), parsed.port());
                let user = if user.is_empty() { String::new() } else { format!("{user}@") };
                let shown = port.map(|port| format!(":{port}")).unwrap_or_default();
                let start = format!("ssh://{user}{host}{shown}/");
                let web = format!("https://{host}");
                Some(Remote { start, web, host, path, ssh_port: Some(port.unwrap_or(22)), login: None })
            }
            "git" => {
                let port = parsed.port().map(|port| format!(":{port}")).unwrap_or_default();
                let (start, web) = (format!("git://{host}{port}/"), format!("https://{host}"));
                Some(Remote { start, web, host, path, ssh_port: None, login: None })
            }
            _ => None,
        };
    }
    let (user_host, path) = url.split_once(':')?;
    // `C:\x`, `./a:b`: a path, as git reads it.
    if user_host.contains(['/', '\\']) || user_host.len() < 2 {
        return None;
    }
    let host = user_host.rsplit('@').next()?.to_owned();
    let (start, web) = (format!("{user_host}:"), format!("https://{host}"));
    Some(Remote { start, web, host, path: clean(path)?, ssh_port: Some(22), login: None })
}

/// A part of a URL with its `%41` as the letters that they stand for.
fn percent_decoded(text: &str) -> String {
    // As the value of a form, which a plus must not be in.
    let encoded = format!("x={}", text.replace('+', "%2B"));
    url::form_urlencoded::parse(encoded.as_bytes()).map(|(_, value)| value.into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remotes_are_read_as_git_reads_them() {
        let told = |url: &str| parse_remote(url).map(|remote| (remote.web, remote.path, remote.ssh_port));
        let remote = |web: &str, path: &str, port| Some((web.to_owned(), path.to_owned(), port));
        assert_eq!(
            told("https://user:pw@git.example.org:8443/a/b/c.git"),
            remote("https://git.example.org:8443", "a/b/c", None)
        );
        assert_eq!(told("git@git.example.org:a/b.git"), remote("https://git.example.org", "a/b", Some(22)));
        assert_eq!(told("ssh://git@git.example.org:2222/a/b/"), remote("https://git.example.org", "a/b", Some(2222)));
        for local in ["/srv/a/b.git", "../a/b", "file:///srv/a/b.git", "C:\\a\\b", "https://host/only"] {
            assert_eq!(told(local), None, "{local}");
        }
    }
}
