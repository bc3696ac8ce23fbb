//! `image` and `services`.

use crate::config::keywords;
use crate::config::parsing::{Fields, Path, Problems, choice, flat_list};
use crate::config::variables;
use crate::model::Image;
use crate::node::{Node, Value};

const PULL_POLICIES: &[&str] = &["always", "if-not-present", "never"];
/// Maximum length of the user name in `docker:user` and `kubernetes:user`, in characters.
const MAX_USER_LENGTH: usize = 255;

pub(crate) fn image(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Image> {
    image_or_service(node, at, keywords::IMAGE, problems)
}

pub(crate) fn services(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<Image>> {
    let items = flat_list(node, at, problems)?;
    Some(
        items
            .into_iter()
            .filter(|item| !item.is_null())
            .filter_map(|item| image_or_service(item, at.key("service"), keywords::SERVICE, problems))
            .collect(),
    )
}

fn image_or_service(node: &Node, at: Path<'_>, allowed: &[&str], problems: &mut Problems) -> Option<Image> {
    if let Some(name) = node.as_str() {
        if name.trim().is_empty() {
            problems.report(node.span, at, "name can't be blank");
            return None;
        }
        return Some(Image { name: name.to_owned(), ..Image::default() });
    }
    if node.as_map().is_none() {
        problems.report(node.span, at, format_args!("config should be a hash or a string, but it is {}", node.kind()));
        return None;
    }
    let fields = Fields::parse(node, at, allowed, problems)?;
    let name = fields.text("name", problems);
    if fields.get("name").is_none() {
        problems.report(node.span, at, "name can't be blank");
    }
    let docker = fields.get("docker");
    let docker = docker.and_then(|node| Fields::parse(node, at.key("docker"), &["platform", "user"], problems));
    let kubernetes = fields.get("kubernetes");
    let kubernetes = kubernetes.and_then(|node| Fields::parse(node, at.key("kubernetes"), &["user"], problems));
    Some(Image {
        name: name.unwrap_or_default(),
        alias: fields.text("alias", problems),
        entrypoint: fields.get("entrypoint").map(|_| fields.text_list("entrypoint", problems)),
        command: fields.get("command").map(|_| fields.text_list("command", problems)),
        pull_policy: pull_policy(&fields, problems),
        docker_platform: docker.and_then(|docker| docker.text("platform", problems)),
        docker_user: docker.and_then(|docker| user(&docker, problems)),
        kubernetes_user: kubernetes.and_then(|kubernetes| user(&kubernetes, problems)),
        variables: fields
            .get("variables")
            .map(|node| variables::of_job(node, at.key("variables"), problems))
            .unwrap_or_default(),
    })
}

fn pull_policy(fields: &Fields<'_>, problems: &mut Problems) -> Vec<String> {
    let Some(node) = fields.get("pull_policy") else { return Vec::new() };
    let at = fields.at();
    let at = at.key("pull_policy");
    match &node.value {
        Value::List(list) => list.iter().filter_map(|item| choice(item, at, PULL_POLICIES, problems)).collect(),
        _ => choice(node, at, PULL_POLICIES, problems).into_iter().collect(),
    }
}

fn user(fields: &Fields<'_>, problems: &mut Problems) -> Option<String> {
    let node = fields.get("user")?;
    let at = fields.at();
    // Numeric user IDs are often written without quotes.
    let user = match node.value {
        Value::Int(_) => node.scalar_text(),
        _ => fields.text("user", problems),
    }?;
    if user.chars().count() > MAX_USER_LENGTH {
        problems.report(
            node.span,
            at.key("user"),
            format_args!("is too long (maximum is {MAX_USER_LENGTH} characters)"),
        );
        return None;
    }
    Some(user)
}
