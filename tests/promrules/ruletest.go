package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/go-kit/log"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"gopkg.in/yaml.v2"
)

// testFile is a file as `promtool test rules` takes it, without what our tests do not use.
type testFile struct {
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	Tests              []ruleTest     `yaml:"tests"`
}

// ruleTest is a set of series, and what rules make of them at certain times.
type ruleTest struct {
	Name        string         `yaml:"name"`
	Interval    model.Duration `yaml:"interval"`
	InputSeries []struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	Alerts      []alertTest `yaml:"alert_rule_test"`
	Expressions []exprTest  `yaml:"promql_expr_test"`
}

// alertTest is the alerts of a name that fire at a time.
type alertTest struct {
	EvalTime  model.Duration `yaml:"eval_time"`
	Alertname string         `yaml:"alertname"`
	ExpAlerts []struct {
		Labels      map[string]string `yaml:"exp_labels"`
		Annotations map[string]string `yaml:"exp_annotations"`
	} `yaml:"exp_alerts"`
}

// exprTest is the value of an expression at a time.
type exprTest struct {
	EvalTime   model.Duration `yaml:"eval_time"`
	Expr       string         `yaml:"expr"`
	ExpSamples []struct {
		Labels string  `yaml:"labels"`
		Value  float64 `yaml:"value"`
	} `yaml:"exp_samples"`
}

// testRules runs the tests of a file. It returns an error for each difference.
func testRules(file string) []error {
	text, err := os.ReadFile(file)
	if err != nil {
		return []error{err}
	}
	var tests testFile
	if err := yaml.UnmarshalStrict(text, &tests); err != nil {
		return []error{fmt.Errorf("%s: %w", file, err)}
	}
	for i, rules := range tests.RuleFiles {
		tests.RuleFiles[i] = filepath.Join(filepath.Dir(file), rules)
	}
	if len(tests.Tests) == 0 {
		return []error{fmt.Errorf("%s: there are no tests", file)}
	}
	var errs []error
	for _, test := range tests.Tests {
		for _, err := range test.run(time.Duration(tests.EvaluationInterval), tests.RuleFiles) {
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", test.Name, err))
			}
		}
	}
	return errs
}

// run evaluates the rules every interval from the time 0 on, as a server would. Some of the errors are nil.
func (test *ruleTest) run(interval time.Duration, ruleFiles []string) (errs []error) {
	suite, err := promql.NewLazyLoader(nil, test.series(), promql.LazyLoaderOpts{})
	if err != nil {
		return []error{err}
	}
	defer suite.Close()
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc:  rules.EngineQueryFunc(suite.QueryEngine(), suite.Storage()),
		Appendable: suite.Storage(),
		Context:    context.Background(),
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {},
		Logger:     log.NewNopLogger(),
	})
	groups, errs := manager.LoadGroups(interval, labels.EmptyLabels(), "", nil, ruleFiles...)
	if len(errs) > 0 {
		return errs
	}
	for _, group := range groups {
		for _, rule := range group.AlertingRules() {
			// Nothing is restored from an earlier run, so that ALERTS is there at once.
			rule.SetRestored(true)
		}
	}
	for at := time.Duration(0); at <= test.end(); at += interval {
		suite.WithSamplesTill(start.Add(at), func(err error) {
			if err != nil {
				errs = append(errs, err)
			}
		})
		for _, group := range groups {
			group.Eval(suite.Context(), start.Add(at))
			for _, rule := range group.Rules() {
				if err := rule.LastError(); err != nil {
					return append(errs, fmt.Errorf("%s at %s: %w", rule.Name(), at, err))
				}
			}
		}
		for _, alerts := range test.Alerts {
			if expected := time.Duration(alerts.EvalTime); at <= expected && expected < at+interval {
				errs = append(errs, alerts.check(groups))
			}
		}
	}
	for _, expression := range test.Expressions {
		errs = append(errs, expression.check(suite))
	}
	return errs
}

// series is a command of the language of Prometheus's tests that loads the series.
func (test *ruleTest) series() string {
	command := fmt.Sprintf("load %s\n", test.Interval)
	for _, one := range test.InputSeries {
		command += fmt.Sprintf("  %s %s\n", one.Series, one.Values)
	}
	return command
}

// end is the last time at which something is expected.
func (test *ruleTest) end() time.Duration {
	var last model.Duration
	for _, one := range test.Alerts {
		last = max(last, one.EvalTime)
	}
	for _, one := range test.Expressions {
		last = max(last, one.EvalTime)
	}
	return time.Duration(last)
}

func (test *alertTest) check(groups map[string]*rules.Group) error {
	var expected, got []string
	for _, alert := range test.ExpAlerts {
		labelled := labels.NewBuilder(labels.FromMap(alert.Labels)).Set(labels.AlertName, test.Alertname).Labels(nil)
		expected = append(expected, fmt.Sprint(labelled, labels.FromMap(alert.Annotations)))
	}
	for _, group := range groups {
		for _, rule := range group.AlertingRules() {
			for _, alert := range rule.ActiveAlerts() {
				if rule.Name() == test.Alertname && alert.State == rules.StateFiring {
					got = append(got, fmt.Sprint(alert.Labels, alert.Annotations))
				}
			}
		}
	}
	return compare(fmt.Sprintf("%s at %s", test.Alertname, test.EvalTime), expected, got)
}

func (test *exprTest) check(suite *promql.LazyLoader) error {
	at := start.Add(time.Duration(test.EvalTime))
	query, err := suite.QueryEngine().NewInstantQuery(suite.Queryable(), nil, test.Expr, at)
	if err != nil {
		return fmt.Errorf("%s: %w", test.Expr, err)
	}
	defer query.Close()
	result, err := query.Exec(suite.Context()).Vector()
	if err != nil {
		return fmt.Errorf("%s: %w", test.Expr, err)
	}
	var expected, got []string
	for _, sample := range test.ExpSamples {
		labelled, err := parser.ParseMetric(sample.Labels)
		if err != nil {
			return fmt.Errorf("%s: %w", sample.Labels, err)
		}
		expected = append(expected, fmt.Sprint(labelled, sample.Value))
	}
	for _, sample := range result {
		got = append(got, fmt.Sprint(sample.Metric, sample.V))
	}
	return compare(fmt.Sprintf("%s at %s", test.Expr, test.EvalTime), expected, got)
}

func compare(what string, expected, got []string) error {
	sort.Strings(expected)
	sort.Strings(got)
	if strings.Join(expected, "\n") == strings.Join(got, "\n") {
		return nil
	}
	return fmt.Errorf("%s\n  expected:\n    %s\n  got:\n    %s", what, strings.Join(expected, "\n    "), strings.Join(got, "\n    "))
}

var start = time.Unix(0, 0).UTC()
