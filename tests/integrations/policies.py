"""Policies that several tests of integrations use."""

from runner import Policy

EVERYTHING = Policy.parse("mode: allow_all")
