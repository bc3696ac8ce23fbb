//! Refspecs of a job, and lists of refs in git's format `packed-refs`.

use muster_agent_api::builtin::GitMirror;
use muster_steps::failure::Failure;

use super::memory::Refs;

/// Source and destination of the refspec for all tags.
const TAGS: &str = "refs/tags/*";

/// Refspec: refs at the server, and their names in the job's repository. Both or neither have one `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refspec {
    pub(crate) source: String,
    destination: String,
}

impl Refspec {
    /// Parses a refspec. `None` means that mirrors do not support it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (source, destination) = text.strip_prefix('+').unwrap_or(text).split_once(':')?;
        let is_supported = |name: &str| {
            let is_plain = |byte: u8| byte > b' ' && byte != 127 && !b":^~?[\\".contains(&byte);
            name.starts_with("refs/") && name.bytes().all(is_plain) && name.matches('*').count() <= 1
        };
        let both = is_supported(source) && is_supported(destination);
        let same = source.contains('*') == destination.contains('*');
        (both && same).then(|| Self { source: source.to_owned(), destination: destination.to_owned() })
    }

    /// Returns the name in the job's repository, if the ref matches.
    pub(crate) fn destination(&self, name: &str) -> Option<String> {
        match self.source.split_once('*') {
            None => (name == self.source).then(|| self.destination.clone()),
            Some((start, end)) => {
                let middle = name.strip_prefix(start)?.strip_suffix(end)?;
                Some(self.destination.replace('*', middle))
            }
        }
    }
}

/// Returns the refspecs of a job, including tags if the job fetches them.
pub(crate) fn parse_refspecs(inputs: &GitMirror) -> Result<Vec<Refspec>, Failure> {
    let parse = |text: &String| {
        Refspec::parse(text).ok_or_else(|| Failure::Step(format!("`{text}` is not a refspec that mirrors support")))
    };
    let mut refspecs: Vec<Refspec> = inputs.refspecs.iter().map(parse).collect::<Result<_, _>>()?;
    if inputs.tags && !refspecs.iter().any(|refspec| refspec.source == TAGS) {
        refspecs.push(Refspec { source: TAGS.to_owned(), destination: TAGS.to_owned() });
    }
    Ok(refspecs)
}

pub(crate) fn sources(refspecs: &[Refspec]) -> Vec<String> {
    refspecs.iter().map(|refspec| refspec.source.clone()).collect()
}

pub(crate) fn write_refs(refs: &Refs) -> String {
    refs.0.iter().map(|(hash, name)| format!("{hash} {name}\n")).collect()
}

/// Returns the refs of a list with one hash and name per line. Other lines are ignored.
pub(crate) fn read_refs(text: &str) -> Vec<(String, String)> {
    let read = |line: &str| {
        let (hash, name) = line.split_once(' ')?;
        (is_hash(hash) && name.starts_with("refs/")).then(|| (hash.to_owned(), name.to_owned()))
    };
    text.lines().filter_map(read).collect()
}

/// Returns whether a text is a complete SHA-1 hash in lower case.
pub(crate) fn is_hash(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refspecs_of_gitlab_are_mapped() {
        let branches = Refspec::parse("+refs/heads/*:refs/remotes/origin/*").unwrap();
        assert_eq!(branches.destination("refs/heads/a/b").as_deref(), Some("refs/remotes/origin/a/b"));
        assert_eq!(branches.destination("refs/tags/a"), None);
        let pipeline = Refspec::parse("+refs/pipelines/1:refs/pipelines/1").unwrap();
        assert_eq!(pipeline.destination("refs/pipelines/1").as_deref(), Some("refs/pipelines/1"));
        assert_eq!(pipeline.destination("refs/pipelines/12"), None);
    }

    #[test]
    fn refspecs_that_git_could_interpret_differently_are_rejected() {
        for text in [
            "--upload-pack=touch x",
            "main",
            "refs/heads/main",
            "^refs/heads/x",
            "+refs/heads/*:refs/remotes/origin/main",
            "refs/heads/a b:refs/heads/a",
            "refs/heads/a\nb:refs/heads/a",
            "main:refs/heads/main",
            "refs/a:refs/b:refs/c",
        ] {
            assert_eq!(Refspec::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_refs_are_read_from_a_list() {
        let hash = "0123456789012345678901234567890123456789";
        let text =
            format!("# pack-refs with: peeled\n{hash} refs/heads/a\n^{hash}\nnothing refs/heads/b\n{hash} HEAD\n");
        assert_eq!(read_refs(&text), [(hash.to_owned(), "refs/heads/a".to_owned())]);
    }
}
