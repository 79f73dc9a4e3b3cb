//! The permissions that presenters may get tokens for.

use berth_wire::fabric::Perms;

/// One entry of the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Id of the key that it applies to; `None` for every enrolled presenter.
    pub presenter: Option<u128>,
    /// What it permits; the permissions of all rules that apply add up.
    pub perms: Perms,
    /// Ids of the resources that it applies to; `None` for all of them and the node itself.
    pub resources: Option<Vec<u128>>,
}

/// Permissions that enrolled presenters may get tokens for. Without a rule there are none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy(Vec<Rule>);

impl Policy {
    /// Makes a policy; the permissions of its rules add up.
    pub fn new(rules: Vec<Rule>) -> Self {
        Self(rules)
    }

    /// Ids of the keys that rules name, unsorted and with repetitions.
    pub(crate) fn presenters(&self) -> impl Iterator<Item = u128> {
        self.0.iter().filter_map(|rule| rule.presenter)
    }

    /// The permissions that a token of `presenter` for `resource` may have. Resource 0 means any, so rules for some
    /// resources only do not count there.
    pub fn perms(&self, presenter: u128, resource: u128) -> Perms {
        let concerned = |rule: &&Rule| {
            rule.presenter.is_none_or(|id| id == presenter)
                && rule.resources.as_ref().is_none_or(|resources| resources.contains(&resource))
        };
        self.0.iter().filter(concerned).fold(Perms::NONE, |perms, rule| perms.or(rule.perms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_add_up_and_narrow_ones_do_not_reach_further() {
        let rule = |presenter, perms, resources: Option<&[u128]>| Rule {
            presenter,
            perms,
            resources: resources.map(<[u128]>::to_vec),
        };
        let policy = Policy::new(vec![
            rule(None, Perms::READ, None),
            rule(Some(1), Perms::ALLOC, Some(&[10])),
            rule(Some(1), Perms::WRITE, Some(&[10, 11])),
        ]);
        assert_eq!(policy.perms(1, 10), Perms::READ.or(Perms::ALLOC).or(Perms::WRITE));
        assert_eq!(policy.perms(1, 11), Perms::READ.or(Perms::WRITE));
        assert_eq!(policy.perms(1, 0), Perms::READ);
        assert_eq!(policy.perms(2, 10), Perms::READ);
        assert_eq!(Policy::default().perms(1, 10), Perms::NONE);
    }
}
