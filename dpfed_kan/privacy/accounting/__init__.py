"""Accounts: from a mechanism to an ε that is an upper bound, with everything it rests on."""

from dpfed_kan.privacy.accounting.guarantee import Bound, NonPrivate, PrivacyGuarantee
from dpfed_kan.privacy.accounting.several_sites import account

__all__ = ["Bound", "NonPrivate", "PrivacyGuarantee", "account"]
