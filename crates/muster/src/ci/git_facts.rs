//! Facts about the project from git.

use muster_job::Secret;
use muster_pipeline::slug::slug;
use muster_source::Snapshot;

#[derive(Debug, Clone, Default)]
pub(super) struct ProjectIdentity {
    /// Path of the project, such as `group/app`.
    pub(super) path: String,
    /// Base URL of the server's web pages. `None` if no remote has a URL that [`parse_remote`] accepts.
    pub(super) server_url: Option<String>,
    /// Host and port of the remote, if its URL is for SSH.
    pub(super) ssh: Option<(String, u16)>,
    /// Prefix of repository URLs before a project's path, such as `git@host:` or `https://host/`.
    pub(super) clone_url_prefix: Option<String>,
    /// `user:password` of the remote's HTTP URL.
    pub(super) login: Option<Secret>,
    pub(super) default_branch: String,
    /// Value of `user.name`.
    pub(super) user_name: Option<String>,
    /// Value of `user.email`.
    pub(super) user_email: Option<String>,
}

#[derive(Debug, Clone)]
struct Remote {
    host: String,
    path: String,
    ssh_port: Option<u16>,
    /// Base URL for web pages: scheme, host and port.
    web: String,
    /// URL prefix before the path, without a password.
    clone_prefix: String,
    login: Option<Secret>,
}

impl ProjectIdentity {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let config = snapshot.config(r"^(remote\..*\.url|user\.(name|email)|init\.defaultbranch)$");
        let value = |name: &str| config.iter().rfind(|(key, _)| key == name).map(|(_, value)| value.clone());
        let remote = remote(&config);
        let directory =
            snapshot.worktree.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let path = match &remote {
            Some(remote) => remote.path.clone(),
            None => format!("local/{}", path_part(&directory)),
        };
        let default_branch = snapshot
            .remote_default_branch()
            .or_else(|| ["main", "master"].into_iter().find(|name| has_branch(snapshot, name)).map(str::to_owned))
            .or_else(|| value("init.defaultbranch"))
            .unwrap_or_else(|| "main".to_owned());
        Self {
            server_url: remote.as_ref().map(|remote| remote.web.clone()),
            clone_url_prefix: remote.as_ref().map(|remote| remote.clone_prefix.clone()),
            login: remote.as_ref().and_then(|remote| remote.login.clone()),
            ssh: remote.and_then(|remote| remote.ssh_port.map(|port| (remote.host, port))),
            path,
            default_branch,
            user_name: value("user.name"),
            user_email: value("user.email"),
        }
    }

    /// Returns the base URL of the project's server: the URL from the remote, or else `coordinator`.
    pub(super) fn server_or<'a>(&'a self, coordinator: &'a str) -> &'a str {
        self.server_url.as_deref().unwrap_or(coordinator).trim_end_matches('/')
    }

    /// Returns the last part of the path, such as `app`.
    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the path without its last part, such as `group`.
    pub(super) fn namespace(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(namespace, _)| namespace)
    }
}

/// Returns the remote `origin`. If it does not exist or is not on a server, returns the first other remote on a server.
fn remote(config: &[(String, String)]) -> Option<Remote> {
    let origin = config.iter().rfind(|(key, _)| key == "remote.origin.url");
    let others = config.iter().filter(|(key, _)| key.starts_with("remote.") && key != "remote.origin.url");
    origin.into_iter().chain(others).find_map(|(_, url)| parse_remote(url))
}

fn has_branch(snapshot: &Snapshot, name: &str) -> bool {
    snapshot.branch.as_deref() == Some(name) || snapshot.resolve(&format!("refs/heads/{name}")).is_some()
}

/// Converts a directory's name to a valid part of a project path.
fn path_part(name: &str) -> String {
    let mapped: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' }).collect();
    let trimmed = mapped.trim_matches(['-', '.']);
    if trimmed.is_empty() { slug("project") } else { trimmed.to_owned() }
}

/// Parses URLs such as `https://host/group/app.git`, `ssh://git@host:22/group/app.git` and `git@host:group/app.git`.
///
/// Returns `None` for local paths, for other schemes, and for projects without a group.
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
                let login = parsed.password().map(|password| {
                    Secret::new(format!("{}:{}", percent_decoded(parsed.username()), percent_decoded(password)))
                });
                Some(Remote { clone_prefix: format!("{web}/"), web, host, path, ssh_port: None, login })
            }
            "ssh" | "git+ssh" => {
                let (user, port) = (parsed.username(), parsed.port());
                let user = if user.is_empty() { String::new() } else { format!("{user}@") };
                let port_suffix = port.map(|port| format!(":{port}")).unwrap_or_default();
                let clone_prefix = format!("ssh://{user}{host}{port_suffix}/");
                let web = format!("https://{host}");
                Some(Remote { clone_prefix, web, host, path, ssh_port: Some(port.unwrap_or(22)), login: None })
            }
            "git" => {
                let port = parsed.port().map(|port| format!(":{port}")).unwrap_or_default();
                let (clone_prefix, web) = (format!("git://{host}{port}/"), format!("https://{host}"));
                Some(Remote { clone_prefix, web, host, path, ssh_port: None, login: None })
            }
            _ => None,
        };
    }
    let (user_host, path) = url.split_once(':')?;
    // Git treats `C:\x` and `./a:b` as paths.
    if user_host.contains(['/', '\\']) || user_host.len() < 2 {
        return None;
    }
    let host = user_host.rsplit('@').next()?.to_owned();
    let (clone_prefix, web) = (format!("{user_host}:"), format!("https://{host}"));
    Some(Remote { clone_prefix, web, host, path: clean(path)?, ssh_port: Some(22), login: None })
}

fn percent_decoded(text: &str) -> String {
    // Decode the text as the value of a form, in which `+` would mean a space, and `&` would end the value.
    let encoded = format!("x={}", text.replace('+', "%2B").replace('&', "%26"));
    url::form_urlencoded::parse(encoded.as_bytes()).map(|(_, value)| value.into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_remote_on_a_server_is_used_unless_origin_is_on_a_server() {
        let path = |remotes: &[(&str, &str)]| {
            let config: Vec<_> =
                remotes.iter().map(|(name, url)| (format!("remote.{name}.url"), (*url).to_owned())).collect();
            remote(&config).map(|remote| remote.path)
        };
        let (local, first, second) = ("/srv/app.git", "https://git.example/a/first", "https://git.example/a/second");
        assert_eq!(path(&[("a", first), ("origin", second)]).as_deref(), Some("a/second"));
        assert_eq!(path(&[("origin", local), ("a", first), ("b", second)]).as_deref(), Some("a/first"));
        assert_eq!(path(&[("a", local), ("b", second)]).as_deref(), Some("a/second"));
        assert_eq!(path(&[("origin", local)]).as_deref(), None);
    }

    #[test]
    fn login_is_decoded() {
        let login = |url: &str| parse_remote(url).unwrap().login.unwrap().expose().to_owned();
        assert_eq!(login("https://u&1:a&b=c+%26%20%40@git.example/g/p.git"), "u&1:a&b=c+& @");
    }

    #[test]
    fn remote_urls_are_parsed_as_git_parses_them() {
        let parsed = |url: &str| parse_remote(url).map(|remote| (remote.web, remote.path, remote.ssh_port));
        let remote = |web: &str, path: &str, port| Some((web.to_owned(), path.to_owned(), port));
        assert_eq!(
            parsed("https://user:pw@git.example.org:8443/a/b/c.git"),
            remote("https://git.example.org:8443", "a/b/c", None)
        );
        assert_eq!(parsed("git@git.example.org:a/b.git"), remote("https://git.example.org", "a/b", Some(22)));
        assert_eq!(parsed("ssh://git@git.example.org:2222/a/b/"), remote("https://git.example.org", "a/b", Some(2222)));
        for local in ["/srv/a/b.git", "../a/b", "file:///srv/a/b.git", "C:\\a\\b", "https://host/only"] {
            assert_eq!(parsed(local), None, "{local}");
        }
    }
}
