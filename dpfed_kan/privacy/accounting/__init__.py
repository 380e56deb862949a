"""Accounts: from a mechanism to an ε that is an upper bound, with everything it rests on."""

from dpfed_kan.privacy.accounting.account import account
from dpfed_kan.privacy.accounting.guarantee import Bound, NonPrivate, PrivacyGuarantee

__all__ = ["Bound", "NonPrivate", "PrivacyGuarantee", "account"]
